"""How a run's evaluations went, in plain text."""

import math
from collections.abc import Sequence
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


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return str(value)
    share = 1.0 if high == low else (value - low) / (high - low)
    return "█" * max(1, round(share * _BAR_WIDTH))
