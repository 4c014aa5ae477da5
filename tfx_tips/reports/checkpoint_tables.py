"""A directory's checkpoints for the terminal."""

from collections.abc import Sequence
from datetime import datetime

from tfx_tips._core.text_table import format_table, visible
from tfx_tips.callbacks.checkpoint_record import CheckpointRecord

_SHOWN_METRICS = 6


def checkpoint_table(
    records: Sequence[CheckpointRecord], *, metric: str, chosen: CheckpointRecord | None
) -> str:
    """Lays checkpoints out in the given order, with `metric` before the other metrics.

    Args:
        records: The checkpoints.
        metric: The metric by which they are ranked.
        chosen: The one to mark with a star, or None.
    """
    names = {name for record in records for name in record.metrics}
    ordered = sorted(names, key=lambda name: (name != metric, name))
    shown, hidden = ordered[:_SHOWN_METRICS], ordered[_SHOWN_METRICS:]
    table = format_table(
        ["best", "step", "epoch", *shown, "size", "time (UTC)"],
        [
            [
                "*" if chosen is not None and record.path == chosen.path else None,
                record.step,
                record.epoch,
                *(record.metrics.get(name) for name in shown),
                _readable_size(record.size_bytes),
                _readable_time(record.time),
            ]
            for record in records
        ],
    )
    if hidden:
        table += f"\n{len(hidden)} more metrics are recorded: {visible(', '.join(hidden))}"
    return table


def place_in_training(record: CheckpointRecord) -> str:
    """Says at which step a checkpoint lies, and at what share of the budget where known."""
    share = record.share_of_budget
    if share is None:
        return f"step {record.step:,}"
    return f"step {record.step:,} of {record.total_steps:,} ({100 * share:.0f} %)"


def _readable_size(size: int) -> str:
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def _readable_time(time: str) -> str:
    try:
        return datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return time
