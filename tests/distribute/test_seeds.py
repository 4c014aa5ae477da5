"""Seeds that hosts share, and seeds that they must not share."""

import json
import os
import random
import subprocess
import sys

import pytest

from tfx_tips.distribute import Seeds, seeds

HOSTS = range(4)


def share_of(host, *, num_hosts, seed):
    """What a host reads of range(1000): shuffled by the data seed, then every n-th."""
    order = list(range(1000))
    random.Random(seed).shuffle(order)
    return order[host::num_hosts]


def test_hosts_that_shuffle_by_the_data_seed_read_each_example_once():
    shares = [share_of(host, num_hosts=2, seed=seeds(7, host_index=host).data) for host in range(2)]

    overlap = set(shares[0]) & set(shares[1])
    missing = set(range(1000)) - set(shares[0]) - set(shares[1])
    assert (len(overlap), len(missing)) == (0, 0)


def test_tf_data_shuffled_by_the_data_seed_and_sharded_after_it_loses_nothing():
    import tensorflow as tf

    shares = []
    for host in range(2):
        dataset = tf.data.Dataset.range(1000)
        dataset = dataset.shuffle(1000, seed=seeds(7, host_index=host).data).shard(2, host)
        shares.append([int(value) for value in dataset.as_numpy_iterator()])

    assert sorted(shares[0] + shares[1]) == list(range(1000))
    assert shares[0] != sorted(shares[0])


def test_initialization_and_data_are_shared_and_augmentation_is_each_host_s_own():
    derived = [seeds(7, host_index=host) for host in HOSTS]

    assert len({each.initialization for each in derived}) == 1
    assert len({each.data for each in derived}) == 1
    assert len({each.augmentation for each in derived}) == len(HOSTS)
    assert [each.host_index for each in derived] == list(HOSTS)


def test_purposes_get_different_seeds():
    derived = seeds(7, host_index=0)

    assert len({derived.initialization, derived.data, derived.augmentation}) == 3


def test_seeds_are_these_in_every_version():
    """The first four bytes of `printf 0/data | sha256sum` and so on, without the sign."""
    assert seeds(0, host_index=0) == Seeds(
        initialization=0x6916C296, data=0x6ACA7314, augmentation=0x32DE5DA0, host_index=0
    )


def test_seeds_are_the_same_in_another_process_whatever_its_hash_seed():
    script = "from tfx_tips.distribute import seeds; print(seeds(7, host_index=3))"
    for hash_seed in ("0", "1"):
        printed = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert printed.strip() == repr(seeds(7, host_index=3))


def test_neighbouring_runs_and_hosts_share_no_seed():
    derived = [seeds(seed, host_index=host) for seed in range(200) for host in HOSTS]

    assert len({each.initialization for each in derived}) == 200
    assert len({each.data for each in derived}) == 200
    assert len({each.augmentation for each in derived}) == 200 * len(HOSTS)


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**63, 10**30])
def test_every_seed_fits_what_numpy_keras_and_tensorflow_take(seed):
    derived = seeds(seed, host_index=0)

    for value in (derived.initialization, derived.data, derived.augmentation):
        assert type(value) is int
        assert 0 <= value < 2**31


def test_host_is_this_one_unless_told(monkeypatch):
    config = {"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 2}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert seeds(7) == seeds(7, host_index=2)

    monkeypatch.delenv("TF_CONFIG")
    assert seeds(7) == seeds(7, host_index=0)


@pytest.mark.parametrize("seed", [-1, 1.0, "7", None, True])
def test_seed_that_is_no_whole_number_is_refused_and_shown(seed):
    with pytest.raises(ValueError, match=f"`seed` must be .* Received: seed={seed!r}"):
        seeds(seed)


@pytest.mark.parametrize("host", [-1, 0.5, "1"])
def test_host_index_that_is_no_whole_number_is_refused_and_shown(host):
    with pytest.raises(ValueError, match=f"`host_index` must be .* Received: host_index={host!r}"):
        seeds(7, host_index=host)
