"""Records and input pipelines."""

from typing import TYPE_CHECKING

from tfx_tips._core.lazy import lazy_names

if TYPE_CHECKING:
    from tfx_tips.data.pipeline import from_step

__all__ = ["from_step"]

__getattr__ = lazy_names(__name__, {"from_step": "pipeline"})


def __dir__() -> list[str]:
    return sorted(__all__)
