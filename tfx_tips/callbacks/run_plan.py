"""What a run is as a whole where one `fit` call is only a part of it.

Finishing an epoch that was broken off takes a `fit` of its own. Callbacks must not take its
end for the end of the run, nor its first batch for the first batch of the epoch.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class RunPlan:
    """The run that the current `fit` call is a part of.

    Attributes:
        epochs: Planned epochs of the whole run.
        start_step: Optimizer steps finished when this `fit` begins.
        total_steps: Optimizer steps that the whole run is planned to have.
        start_batch: Batches of the first epoch of this `fit` that were finished before it.
        accumulated_batches: Batches since then whose gradients the optimizer still accumulates.
        continues: Whether an earlier `fit` in this process belongs to the same run.
        more_follows: Whether a later `fit` belongs to the same run.
    """

    epochs: int
    start_step: int
    total_steps: int
    start_batch: int = 0
    accumulated_batches: int = 0
    continues: bool = False
    more_follows: bool = False


_current: ContextVar[RunPlan | None] = ContextVar("tfx_tips_run_plan", default=None)


def current_plan() -> RunPlan | None:
    """Returns the plan that the running `fit` is a part of, or None where it is a whole run."""
    return _current.get()


@contextlib.contextmanager
def part_of(plan: RunPlan) -> Iterator[None]:
    """Says that a `fit` called inside belongs to `plan`."""
    token = _current.set(plan)
    try:
        yield
    finally:
        _current.reset(token)
