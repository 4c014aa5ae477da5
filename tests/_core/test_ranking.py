"""Ranking against sorting by hand."""

import itertools
import math

import pytest

from tfx_tips._core.ranking import (
    best_first,
    direction_of_keras_class,
    quality,
    require_mode,
)

NAN, INF = math.nan, math.inf
VALUES = [0.0, -0.0, 1.5, 1.5, -3.0, INF, -INF, NAN, NAN]


def rank(values, mode):
    """Returns the places of the values in time, the best first."""
    pairs = list(enumerate(values))
    ranked = best_first(pairs, mode=mode, value=lambda pair: pair[1], age=lambda pair: pair[0])
    return [place for place, _ in ranked]


def rank_by_hand(values, mode):
    """Takes the best out again and again: finite ones, then infinite ones, then NaN."""
    left = list(range(len(values)))
    order = []
    for kind in (math.isfinite, math.isinf, math.isnan):
        of_kind = [place for place in left if kind(values[place])]
        while of_kind:
            best = of_kind[0]
            for place in of_kind[1:]:
                better = (
                    values[place] < values[best] if mode == "min" else values[place] > values[best]
                )
                if better:
                    best = place
            of_kind.remove(best)
            order.append(best)
    return order


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_best_first_equals_sorting_by_hand_for_all_orders(count, mode):
    for values in itertools.permutations(VALUES, count):
        assert rank(values, mode) == rank_by_hand(values, mode), values


@pytest.mark.parametrize(
    ("mode", "expected"), [("min", [2, 0, 1, 4, 3, 5]), ("max", [1, 0, 2, 3, 4, 5])]
)
def test_finite_values_stand_before_infinities_and_those_before_nan(mode, expected):
    assert rank([0.5, 0.7, 0.1, INF, -INF, NAN], mode) == expected


def test_of_equal_values_the_earlier_stands_first_whatever_the_order_given():
    items = [("late", 9), ("early", 2), ("middle", 5)]

    ranked = best_first(items, mode="max", value=lambda item: 0.5, age=lambda item: item[1])

    assert [name for name, _ in ranked] == ["early", "middle", "late"]


def test_quality_of_nan_is_worse_than_of_any_number():
    for mode in ("min", "max"):
        assert all(quality(NAN, mode) > quality(value, mode) for value in (0.0, INF, -INF, 1e308))


@pytest.mark.parametrize("mode", ["auto", "min", "max"])
def test_known_modes_are_accepted(mode):
    require_mode(mode)


@pytest.mark.parametrize("mode", ["maximum", "MIN", "", None, 1])
def test_unknown_mode_is_refused_and_named(mode):
    with pytest.raises(ValueError, match=r"one of 'auto', 'min', 'max'\. Received: mode="):
        require_mode(mode)


@pytest.mark.parametrize("name", ["AUC", "BinaryAccuracy", "F1Score", "R2Score", "MeanIoU"])
def test_metrics_of_hits_are_better_when_larger(name):
    assert direction_of_keras_class(name) == "max"


@pytest.mark.parametrize("name", ["MeanSquaredError", "KLDivergence", "FalseNegatives", "Hinge"])
def test_metrics_of_misses_are_better_when_smaller(name):
    assert direction_of_keras_class(name) == "min"


@pytest.mark.parametrize("name", ["Mean", "Sum", "MeanMetricWrapper", "f1", "auc", ""])
def test_direction_of_anything_else_has_to_be_told(name):
    assert direction_of_keras_class(name) is None


def test_every_class_with_a_direction_is_a_metric_of_keras():
    import keras

    from tfx_tips._core import ranking

    names = ranking._LOWER_IS_BETTER | ranking._HIGHER_IS_BETTER
    unknown = {name for name in names if not hasattr(keras.metrics, name)}

    # Made in Keras 3.10 and later; both bounds of what is supported have all of them.
    assert unknown == set()
    assert not ranking._LOWER_IS_BETTER & ranking._HIGHER_IS_BETTER
