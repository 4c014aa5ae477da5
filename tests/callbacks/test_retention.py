"""Which checkpoints stay, against a brute-force oracle."""

import math
import random

import pytest

from tfx_tips.callbacks.retention import Ranked, ages_to_keep

VALUES = (0.0, -1.5, 1.5, 2.0, 2.0, math.nan, math.inf, -math.inf, None)


def better(a, b, mode):
    """Whether value `a` beats value `b`; both finite, or both of the same infinite kind."""
    return a < b if mode == "min" else a > b


def oracle(values, *, mode, keep, keep_latest):
    """Picks the best one by one: looks at all the others for each, in the words of the docs."""
    ages = [age for age, value in enumerate(values) if value is not None]
    finite = [age for age in ages if math.isfinite(values[age])]
    infinite = [age for age in ages if math.isinf(values[age])]
    candidates = finite or infinite or ages
    best = []
    while candidates and len(best) < keep:
        champion = candidates[0]  # the earliest; a later one must be strictly better
        for age in candidates[1:]:
            if better(values[age], values[champion], mode):
                champion = age
        best.append(champion)
        candidates = [age for age in candidates if age != champion]
    latest = list(range(len(values)))[::-1][:keep_latest]
    return set(best) | set(latest)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_agrees_with_brute_force_on_random_values(mode):
    draw = random.Random(0)
    for _ in range(2000):
        values = draw.choices(VALUES, k=draw.randrange(9))
        keep, keep_latest = draw.randint(1, 4), draw.randint(0, 2)
        shuffled = [Ranked(age, value) for age, value in enumerate(values)]
        draw.shuffle(shuffled)
        kept = ages_to_keep(shuffled, mode=mode, keep=keep, keep_latest=keep_latest)
        assert kept == oracle(values, mode=mode, keep=keep, keep_latest=keep_latest), values


@pytest.mark.parametrize("mode", ["min", "max"])
def test_choosing_one_by_one_as_they_come_ends_with_the_best_of_all(mode):
    """What was dropped on the way is never missed later."""
    draw = random.Random(1)
    for _ in range(1000):
        values = draw.choices(VALUES, k=10)
        keep, keep_latest = draw.randint(1, 3), draw.randint(0, 2)
        kept = []
        for age, value in enumerate(values):
            kept.append(Ranked(age, value))
            stay = ages_to_keep(kept, mode=mode, keep=keep, keep_latest=keep_latest)
            kept = [ranked for ranked in kept if ranked.age in stay]
        expected = oracle(values, mode=mode, keep=keep, keep_latest=keep_latest)
        assert {ranked.age for ranked in kept} == expected, values


def test_of_equal_values_the_earlier_stays():
    equal = [Ranked(age, 0.5) for age in range(4)]
    assert ages_to_keep(equal, mode="min", keep=2, keep_latest=0) == {0, 1}


def test_an_infinity_on_the_good_side_leaves_when_a_finite_value_comes():
    ranked = [Ranked(0, -math.inf), Ranked(1, math.nan)]
    assert ages_to_keep(ranked, mode="min", keep=2, keep_latest=0) == {0}
    ranked.append(Ranked(2, 9.0))
    assert ages_to_keep(ranked, mode="min", keep=2, keep_latest=0) == {2}


def test_more_latest_than_there_are_keeps_all():
    ranked = [Ranked(0, None), Ranked(1, None)]
    assert ages_to_keep(ranked, mode="min", keep=1, keep_latest=5) == {0, 1}
