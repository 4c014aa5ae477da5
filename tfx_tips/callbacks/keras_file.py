"""What stands in a file that Keras has saved: the shapes of its variables."""

import contextlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import h5py

# Checked on Keras 3.10 to 3.15: a `.keras` file is an archive with this member; its HDF5
# groups follow the model's layers, the optimizer's own variables stand in one of them.
_WEIGHTS_IN_ARCHIVE = "model.weights.h5"
_OPTIMIZER = "optimizer/"
_OPTIMIZER_VARIABLES = "optimizer/vars/"


@dataclass(frozen=True)
class StoredShapes:
    """Shapes of the variables in a `.keras` or `.weights.h5` file, by their place in it.

    Attributes:
        model: Of the layers' variables.
        optimizer: Of the optimizer's variables; empty where its state was not saved.
    """

    model: dict[str, tuple[int, ...]]
    optimizer: dict[str, tuple[int, ...]]


def stored_shapes(path: Path) -> StoredShapes:
    """Reads the shapes of a file's variables, not their values.

    Raises:
        OSError: If the file is neither of the two, or damaged.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            shapes[name] = item.shape

    with _weights(path) as source, h5py.File(source, "r") as file:
        file.visititems(note)
    return StoredShapes(
        {name: shape for name, shape in shapes.items() if not name.startswith(_OPTIMIZER)},
        {name: shape for name, shape in shapes.items() if name.startswith(_OPTIMIZER_VARIABLES)},
    )


@contextlib.contextmanager
def _weights(path: Path) -> Iterator[Path | IO[bytes]]:
    if path.suffix != ".keras":
        yield path
        return
    with zipfile.ZipFile(path) as archive, archive.open(_WEIGHTS_IN_ARCHIVE) as member:
        yield member
