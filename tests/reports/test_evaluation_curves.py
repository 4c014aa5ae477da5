import math
from types import SimpleNamespace

import pytest

from tfx_tips.reports.evaluation_curves import evaluation_curve


def record(step, **scalars):
    return SimpleNamespace(step=step, scalars=scalars)


def test_bars_span_the_values_from_zero_where_they_spread_widely():
    table = evaluation_curve([record(5, loss=4.0), record(10, loss=1.0)], metric="loss")
    assert table.splitlines()[0].endswith("loss, 0 to 4")
    bars = [line.count("█") for line in table.splitlines()[2:]]
    assert bars == [40, 10]


def test_bars_begin_at_the_smallest_value_where_values_lie_close_together():
    records = [record(1, acc=0.90), record(2, acc=0.95), record(3, acc=1.0)]
    bars = [line.count("█") for line in evaluation_curve(records, metric="acc").splitlines()[2:]]
    assert bars == [1, 20, 40]


def test_shows_nan_and_infinity_as_such():
    records = [record(1, loss=1.0), record(2, loss=math.nan), record(3, loss=math.inf)]
    lines = evaluation_curve(records, metric="loss").splitlines()
    assert lines[3].endswith("nan")
    assert lines[4].endswith("inf")


def test_negative_and_equal_values_have_bars():
    negative = [record(1, score=-3.0), record(2, score=-1.0)]
    assert [r.count("█") for r in evaluation_curve(negative, metric="score").splitlines()[2:]] == [
        1,
        40,
    ]
    equal = [record(1, score=0.0), record(2, score=0.0)]
    assert evaluation_curve(equal, metric="score").count("█") == 80


def test_counts_of_classes_are_left_out_of_the_columns():
    records = [record(1, **{"val_loss": 1.0, "val_count/3": 5.0})]
    assert "val_count" not in evaluation_curve(records, metric="val_loss")


def test_unknown_metric_names_those_there_are():
    with pytest.raises(ValueError, match=r"metric='auc'.*They hold: loss"):
        evaluation_curve([record(1, loss=1.0)], metric="auc")
