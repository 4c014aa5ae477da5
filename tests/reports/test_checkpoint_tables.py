import pytest

from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
from tfx_tips.reports.checkpoint_tables import checkpoint_table, place_in_training


def record(step, *, total_steps=None, **metrics):
    return CheckpointRecord(
        path=f"/run/step-{step:08d}.keras",
        sequence=step,
        step=step,
        epoch=0,
        batch=step,
        metrics=metrics,
        monitor="val_loss",
        mode="min",
        time="2026-01-02T03:04:05+00:00",
        size_bytes=1_500_000,
        sha256="0" * 64,
        weights_only=False,
        total_steps=total_steps,
    )


def test_marks_the_chosen_one_and_puts_its_metric_first():
    records = [record(10, auc=0.5, val_loss=1.0), record(20, auc=0.75, val_loss=0.5)]
    lines = checkpoint_table(records, metric="val_loss", chosen=records[1]).splitlines()
    assert lines[0].split()[:5] == ["best", "step", "epoch", "val_loss", "auc"]
    assert lines[2].split() == ["10", "0", "1", "0.5", "1.5", "MB", "2026-01-02", "03:04:05"]
    assert lines[3].split()[0] == "*"


def test_an_absent_value_is_an_empty_cell():
    table = checkpoint_table([record(10), record(20, val_loss=0.5)], metric="val_loss", chosen=None)
    assert table.splitlines()[2].split()[:3] == ["10", "0", "1.5"]


def test_many_metrics_are_named_below_the_table():
    metrics = {f"m{number}": float(number) for number in range(9)}
    table = checkpoint_table([record(1, **metrics)], metric="m8", chosen=None)
    assert table.splitlines()[-1] == "3 more metrics are recorded: m5, m6, m7"


@pytest.mark.parametrize(
    ("total_steps", "text"), [(None, "step 1,200"), (2000, "step 1,200 of 2,000 (60 %)")]
)
def test_tells_the_share_of_the_budget_where_it_is_known(total_steps, text):
    assert place_in_training(record(1200, total_steps=total_steps)) == text
