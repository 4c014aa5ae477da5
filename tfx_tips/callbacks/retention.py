"""Which checkpoints stay: the best and the latest."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tfx_tips._core.ranking import Mode, best_first


@dataclass(frozen=True)
class Ranked:
    """What decides whether a checkpoint stays.

    Attributes:
        age: Place in time; larger is newer.
        value: The monitored metric, or None where it was saved as the latest only.
    """

    age: int
    value: float | None


def ages_to_keep(
    checkpoints: Iterable[Ranked], *, mode: Mode, keep: int, keep_latest: int
) -> set[int]:
    """Returns the ages of the `keep` best and of the `keep_latest` newest.

    A NaN or an infinity is not among the best while a finite value exists.
    """
    checkpoints = list(checkpoints)
    valued = [(c.age, c.value) for c in checkpoints if c.value is not None]
    for is_candidate in (math.isfinite, math.isinf, math.isnan):
        group = [pair for pair in valued if is_candidate(pair[1])]
        if group:
            break
    best = best_first(group, mode=mode, value=lambda pair: pair[1], age=lambda pair: pair[0])
    ages = sorted(c.age for c in checkpoints)
    return {age for age, _ in best[:keep]} | set(ages[len(ages) - keep_latest :])
