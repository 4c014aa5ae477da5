"""A run in plain text: how its evaluations went, and which checkpoints stayed."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from tfx_tips._core.text_table import format_table

_BAR_WIDTH = 40


class Evaluated(Protocol):
    """What a record of an evaluation must have."""

    @property
    def step(self) -> int:
        """Optimizer steps finished."""

    @property
    def scalars(self) -> dict[str, float]:
        """Metrics by name."""


class Stored(Protocol):
    """What a record of a checkpoint must have."""

    @property
    def step(self) -> int:
        """Optimizer steps finished."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics by name."""

    @property
    def path(self) -> str:
        """The file."""


def evaluation_curve(records: Sequence[Evaluated], *, metric: str) -> str:
    """Returns a table of evaluations with a bar for one metric.

    The bars begin at the smallest finite value (or at zero for values that are all positive
    and spread widely) and end at the largest.

    Args:
        records: The evaluations, the earliest first.
        metric: The name whose values the bars show.

    Raises:
        ValueError: If no record holds a finite value of `metric`.
    """
    values = [record.scalars.get(metric, math.nan) for record in records]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        names = sorted({name for record in records for name in record.scalars})
        raise ValueError(
            f"`metric` must be one that the evaluations hold. Received: metric={metric!r}. "
            f"They hold: {', '.join(names) or 'nothing'}."
        )
    low, high = min(finite), max(finite)
    if 0 <= low < high / 2:
        low = 0.0
    names = [name for name in records[-1].scalars if "/" not in name]
    rows = [
        [record.step, *(record.scalars.get(name) for name in names), _bar(value, low, high)]
        for record, value in zip(records, values, strict=True)
    ]
    return format_table(["step", *names, f"{metric}, {low:.4g} to {high:.4g}"], rows)


def checkpoint_table(records: Sequence[Stored], *, metric: str, chosen: Stored | None) -> str:
    """Returns a table of checkpoints in the order of their steps, the chosen one marked.

    Args:
        records: The checkpoints.
        metric: The metric to show.
        chosen: The one to mark, or None.
    """
    rows = [
        [
            "*" if chosen is not None and record.path == chosen.path else "",
            record.step,
            record.metrics.get(metric),
            record.path,
        ]
        for record in sorted(records, key=lambda record: record.step)
    ]
    return format_table(["", "step", metric, "file"], rows)


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return str(value)
    share = 1.0 if high == low else (value - low) / (high - low)
    return "█" * max(1, round(share * _BAR_WIDTH))
