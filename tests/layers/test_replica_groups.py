import json
import math

import keras
import numpy as np
import pytest

from tfx_tips.layers.ghost_statistics import GhostStatistics
from tfx_tips.layers.replica_groups import ReplicaGroups, find_groups, smallest_group

TOLERANCE = dict.fromkeys(("outputs", "inputs", "gamma", "beta", "mean", "variance"), 1e-6)


def never(message):
    raise AssertionError(message)


@pytest.mark.parametrize(
    ("replicas", "batch", "v", "wanted"),
    [(8, 64, 64, 1), (8, 32, 64, 2), (8, 17, 64, 4), (8, 1, 64, 8), (6, 22, 64, 3), (4, 0, 64, 4)],
)
def test_auto_takes_the_smallest_divisor_that_reaches_the_size_or_all(replicas, batch, v, wanted):
    assert smallest_group(replicas, batch, v) == wanted


@pytest.mark.parametrize("asked", ["auto", "all", 1])
def test_without_a_strategy_there_is_one_replica(asked):
    groups = find_groups(asked, None, 64, warn=never)

    assert (groups.replicas, groups.size) == (1, 1)


def test_groups_that_do_not_divide_the_replicas_name_both():
    with pytest.raises(ValueError, match="replicas_per_group=2 with 1 replicas"):
        find_groups(2, 8, 64, warn=never)


def test_one_replica_merges_without_others(rng):
    x = rng.normal(size=(4, 8, 3))
    known = GhostStatistics(8.0, x.mean(axis=1), np.zeros((4, 3)), x.var(axis=1))
    pooled = ReplicaGroups().merge_everything(known, between=True)
    ghost = ReplicaGroups().merge_everything(known, between=False)

    np.testing.assert_allclose(pooled.variance, x.reshape(-1, 3).var(axis=0))
    np.testing.assert_allclose(ghost.variance, x.var(axis=1).mean(axis=0))
    assert keras.backend.backend() == "tensorflow"


@pytest.fixture(scope="module")
def on_four_replicas(run_script):
    lines = run_script("ghosts_on_replicas.py", 4).splitlines()
    return {found.pop("case"): found for found in map(json.loads, lines)}


@pytest.mark.multi_process
def test_replicas_equal_the_oracle_with_the_same_ghosts(on_four_replicas):
    cases = {name: found for name, found in on_four_replicas.items() if "mean 1" not in name}
    assert len(cases) == 19
    for name, found in cases.items():
        for what in found.keys() & TOLERANCE.keys():
            assert found[what] < TOLERANCE[what], (name, what)


@pytest.mark.multi_process
def test_statistics_are_stable_on_replicas_where_the_mean_is_large(on_four_replicas):
    cases = {name: found for name, found in on_four_replicas.items() if "mean 1" in name}
    assert len(cases) == 4
    for name, found in cases.items():
        assert all(found[what] < 1e-5 for what in found.keys() & TOLERANCE.keys()), name


@pytest.mark.multi_process
def test_moving_statistics_are_bitwise_equal_on_all_replicas(on_four_replicas):
    assert all(found["bitwise"] for found in on_four_replicas.values())


@pytest.mark.multi_process
def test_replicas_with_unequal_counts_have_the_variance_of_all(run_script):
    lines = run_script("ghosts_on_replicas.py", 2).splitlines()
    values = np.array([0, 1, 2, 3, 4, 5, 100, 104], "float64")
    for found in map(json.loads, lines):
        assert found["mean"] == 27.375
        assert math.isclose(found["variance"], 1859.484375, rel_tol=1e-5)
        wanted = (values - 27.375) / np.sqrt(1859.484375 + 1e-3)
        np.testing.assert_allclose(found["outputs"], wanted, rtol=1e-5)
        assert found["finite"]
    assert len(lines) == 2
