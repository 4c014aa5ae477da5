"""Writing a model as a SavedModel, whole or not at all."""

import os
import shutil
from pathlib import Path
from typing import Any

from tfx_tips._core.files import STRAY_PREFIX, remove_strays


def export_model(model: Any, directory: Path) -> None:
    """Writes `model.export`'s SavedModel under a temporary name, then renames it.

    Args:
        model: A built model.
        directory: The SavedModel's folder; one that is there already is replaced. Beside it
            nothing else may be being written: what a killed process left there is removed.
    """
    beside = directory.with_name(f"{STRAY_PREFIX}{directory.name}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    remove_strays(directory.parent)
    model.export(str(beside), verbose=False)
    if directory.exists():
        shutil.rmtree(directory)
    os.replace(beside, directory)
