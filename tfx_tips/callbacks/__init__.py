"""Callbacks for `model.fit(callbacks=[...])`, and what reads their files."""

from typing import TYPE_CHECKING

from tfx_tips._core.lazy import lazy_names

if TYPE_CHECKING:
    from tfx_tips._core.schedule import AtSteps, DenseThenSparse, EverySteps

__all__ = ["AtSteps", "DenseThenSparse", "EverySteps"]

__getattr__ = lazy_names(
    __name__,
    {},
)
