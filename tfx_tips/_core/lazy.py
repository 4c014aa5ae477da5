"""Public names of a subpackage that are imported when they are first used."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from tfx_tips._core.tensorflow_extra import explain_missing_tensorflow


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes a package's `__getattr__`, which imports a name's module when it is asked for.

    Args:
        package: The package's `__name__`.
        homes: The module, below `package`, in which each public name stands.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explain_missing_tensorflow():
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return get
