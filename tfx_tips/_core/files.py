"""Writing local files so that a reader never sees half of one.

A file is written under a temporary name beside its target, flushed to disk, renamed,
and its folder is flushed. Whatever kills the process leaves either the old file or the
new one under the final name, and at worst a stray with the temporary name.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfx_tips._core.errors import NotEnoughSpaceError

STRAY_PREFIX = ".unfinished-"


def write_beside(
    path: Path, write: Callable[[Path], None], *, expected_bytes: int | None = None
) -> None:
    """Calls `write` with a temporary path in the same folder, then renames it to `path`.

    The temporary name keeps the target's suffix, for writers that look at it.

    Args:
        path: Final local path; an existing file is replaced in one step.
        write: Writes the whole file at the path it is given.
        expected_bytes: Size to name if the disk turns out to be full.

    Raises:
        NotEnoughSpaceError: If the file system is full; nothing that was there is touched.
        OSError: If writing fails otherwise.
    """
    temporary = path.with_name(f"{STRAY_PREFIX}{secrets.token_hex(4)}-{path.name}")
    written = 0
    try:
        try:
            write(temporary)
            flush_to_disk(temporary)
            os.replace(temporary, path)
            flush_to_disk(path.parent)
        finally:
            # Also after an exception of the writer's own; gone already where the rename worked.
            # Before the free bytes are counted, of which it has taken some.
            written = written_size(temporary)
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        if not is_disk_full(error):
            raise
        needed = written if expected_bytes is None else expected_bytes
        raise not_enough_space(path, needed) from error


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text through `write_beside`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes bytes through `write_beside`."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(data)

    write_beside(path, write, expected_bytes=len(data))


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON document through `write_beside`; NaN and infinities stay readable by Python."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def flush_to_disk(path: Path) -> None:
    """Asks the operating system to put a file's bytes, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems refuse to flush a folder; there is nothing better to do.
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Returns a file's SHA-256 in hexadecimal, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_strays(directory: Path, *, of: str = "") -> list[str]:
    """Deletes what a killed writer left under temporary names; returns their names.

    Args:
        directory: Where to look; may be missing.
        of: End of the targets' names, where others write to the same folder at this moment.
    """
    strays = (
        sorted(directory.glob(f"{STRAY_PREFIX}*{glob.escape(of)}")) if directory.is_dir() else []
    )
    for stray in strays:
        if stray.is_dir():
            shutil.rmtree(stray)
        else:
            stray.unlink(missing_ok=True)
    return [stray.name for stray in strays]


def is_disk_full(error: OSError) -> bool:
    """Returns whether an error says that the disk, or the user's share of it, is full."""
    # h5py raises OSError without errno and with HDF5's own text.
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)


def not_enough_space(path: Path, needed: int) -> NotEnoughSpaceError:
    """Makes the error that names the bytes needed and free where `path` should stand."""
    free = shutil.disk_usage(path.parent).free
    return NotEnoughSpaceError(
        errno.ENOSPC,
        f"Not enough space to write {path.name}: {needed:,} bytes are needed, {free:,} bytes "
        f"are free in {path.parent}. What stood there before is untouched. Free some space, "
        "or keep fewer files",
    )


def written_size(path: Path) -> int:
    """Returns how many bytes a file has, 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
