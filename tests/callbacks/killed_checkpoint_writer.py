"""Run as a program: works on a checkpoint directory and kills itself at its k-th file operation.

    python killed_checkpoint_writer.py DIRECTORY K

Ends with status 0 if it got to its end before. The directory must hold two checkpoints.
"""

import os
import signal
import sys
from pathlib import Path

from tfx_tips.callbacks.checkpoint_store import CheckpointStore

FILE_OPERATIONS = ("open", "os.", "shutil.", "tempfile.")
# An audit event of this program's own, not of the file system.
NO_OPERATIONS = ("os.kill", "os.putenv", "os.exec", "os.fork")


def kill_at(operation: int) -> None:
    """Ends this process by SIGKILL when it is about to make its k-th file operation."""
    made = 0

    def count(event: str, arguments: tuple) -> None:
        nonlocal made
        if event.startswith(FILE_OPERATIONS) and event not in NO_OPERATIONS:
            made += 1
            if made == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def write_in_pieces(path: Path) -> None:
    for piece in (b"third ", b"checkpoint's ", b"data"):
        with path.open("ab") as file:
            file.write(piece)


def work(directory: str) -> None:
    """Cleans, adds a third checkpoint, annotates the second, prunes to two."""
    store = CheckpointStore(directory)
    store.clean()
    first, second = store.records()
    store.add(
        write_in_pieces,
        suffix=".keras",
        step=30,
        epoch=0,
        batch=30,
        metrics={"val_loss": 0.25},
        monitor="val_loss",
        mode="min",
    )
    store.annotate(second, {"full_loss": 0.75})
    store.remove(first)


if __name__ == "__main__":
    kill_at(int(sys.argv[2]))
    work(sys.argv[1])
