"""Training-pipeline habits of experienced practitioners for Keras 3 on TensorFlow.

Importing this package imports neither TensorFlow nor Keras: subpackages load when used.
"""

import importlib
from types import ModuleType

from tfx_tips._version import __version__

_SUBPACKAGES = ("callbacks", "data", "distribute", "layers", "reports")

__all__ = ["__version__", *_SUBPACKAGES]


def __getattr__(name: str) -> ModuleType:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"tfx_tips.{name}")
    raise AttributeError(f"module 'tfx_tips' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
