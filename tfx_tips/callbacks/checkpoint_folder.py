"""The folder in which checkpoints stand: a local one, or a remote one that fsspec knows."""

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from tfx_tips._core.files import (
    flush_to_disk,
    not_enough_space,
    sha256_of,
    write_beside,
    write_text,
)


class Folder(Protocol):
    """What a checkpoint store asks of the place where its files stand."""

    def location(self, name: str) -> str:
        """Returns the path or URL of a file."""
        ...

    def sizes(self) -> dict[str, int]:
        """Returns name and bytes of the files in the folder; none where there is no folder."""
        ...

    def open(self, name: str) -> io.BufferedIOBase:
        """Opens a file for reading.

        Raises:
            FileNotFoundError: If there is none.
        """
        ...

    def write(
        self, name: str, write: Callable[[Path], None], *, expected_bytes: int | None
    ) -> tuple[int, str]:
        """Stores the file that `write` makes at the local path it is given.

        Returns:
            The file's bytes and SHA-256.

        Raises:
            NotEnoughSpaceError: If the disk is full, or has less room than `expected_bytes`.
        """
        ...

    def write_text(self, name: str, text: str) -> None:
        """Stores UTF-8 text in one step; an existing file is replaced."""
        ...

    def remove(self, name: str) -> None:
        """Deletes a file, if it is there."""
        ...

    def local_copy(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Gives a local path that holds the file's bytes while the context is open."""
        ...


def open_folder(directory: str | os.PathLike[str]) -> Folder:
    """Returns the folder behind a local path, or behind a URL that fsspec knows.

    Raises:
        ImportError: If the URL's protocol needs a package that is not installed.
        ValueError: If fsspec does not know the protocol.
    """
    text = os.fspath(directory)
    if "://" not in text:
        return LocalFolder(text)
    # Imported here: most directories are local, and fsspec takes its time.
    from fsspec.implementations.local import LocalFileSystem

    files, root = _connect(text)
    return LocalFolder(root) if isinstance(files, LocalFileSystem) else RemoteFolder(text)


class LocalFolder:
    """A folder of the local file system; made by the first write.

    Args:
        directory: Its path.
    """

    def __init__(self, directory: str) -> None:
        self._path = Path(os.path.abspath(directory))

    def location(self, name: str) -> str:
        """See `Folder.location`; the path is absolute."""
        return str(self._path / name)

    def sizes(self) -> dict[str, int]:
        """See `Folder.sizes`."""
        sizes: dict[str, int] = {}
        try:
            entries = os.scandir(self._path)
        except FileNotFoundError:
            return sizes
        with entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        sizes[entry.name] = entry.stat().st_size
        return sizes

    def open(self, name: str) -> io.BufferedIOBase:
        """See `Folder.open`."""
        return (self._path / name).open("rb")

    def write(
        self, name: str, write: Callable[[Path], None], *, expected_bytes: int | None
    ) -> tuple[int, str]:
        """See `Folder.write`."""
        self._path.mkdir(parents=True, exist_ok=True)
        return _write_local(self._path / name, write, expected_bytes)

    def write_text(self, name: str, text: str) -> None:
        """See `Folder.write_text`."""
        write_text(self._path / name, text)

    def remove(self, name: str) -> None:
        """See `Folder.remove`; on the disk before the next file is."""
        with contextlib.suppress(FileNotFoundError):
            (self._path / name).unlink()
            flush_to_disk(self._path)

    @contextlib.contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """See `Folder.local_copy`; the file itself."""
        yield self._path / name


class RemoteFolder:
    """A folder behind a URL, through fsspec.

    Files are written to the local temporary folder and then uploaded. Where a store shows
    an upload only when it is complete, as object stores do, no reader sees half a file.

    Args:
        url: Such as `gs://bucket/run` or `s3://bucket/run`.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._files, self._root = _connect(url)

    def location(self, name: str) -> str:
        """See `Folder.location`; the URL as it was given, and the name."""
        return f"{self._url}/{name}"

    def sizes(self) -> dict[str, int]:
        """See `Folder.sizes`."""
        # Other processes write too, and fsspec remembers what it has listed.
        self._files.invalidate_cache(self._root)
        try:
            entries = self._files.ls(self._root, detail=True)
        except FileNotFoundError:
            return {}
        return {
            entry["name"].rsplit("/", 1)[-1]: entry["size"]
            for entry in entries
            if entry["type"] == "file"
        }

    def open(self, name: str) -> io.BufferedIOBase:
        """See `Folder.open`."""
        return self._files.open(self._remote(name), "rb")

    def write(
        self, name: str, write: Callable[[Path], None], *, expected_bytes: int | None
    ) -> tuple[int, str]:
        """See `Folder.write`."""
        with tempfile.TemporaryDirectory(prefix="tfx-tips-") as folder:
            local = Path(folder) / name
            written = _write_local(local, write, expected_bytes)
            self._files.put_file(str(local), self._remote(name))
        return written

    def write_text(self, name: str, text: str) -> None:
        """See `Folder.write_text`."""
        self._files.pipe_file(self._remote(name), text.encode("utf-8"))

    def remove(self, name: str) -> None:
        """See `Folder.remove`."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._remote(name))

    @contextlib.contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """See `Folder.local_copy`; a download into the local temporary folder."""
        with tempfile.TemporaryDirectory(prefix="tfx-tips-") as folder:
            local = Path(folder) / name
            self._files.get_file(self._remote(name), str(local))
            yield local

    def _remote(self, name: str) -> str:
        return f"{self._root}/{name}"


def _write_local(
    path: Path, write: Callable[[Path], None], expected_bytes: int | None
) -> tuple[int, str]:
    # HDF5 keeps a file open, and its space taken, that it could not write to the end.
    if expected_bytes is not None and shutil.disk_usage(path.parent).free < expected_bytes:
        raise not_enough_space(path, expected_bytes)
    write_beside(path, write, expected_bytes=expected_bytes)
    return path.stat().st_size, sha256_of(path)


def _connect(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url)
    except ImportError as error:
        missing = error.name or getattr(error.__cause__, "name", None)
        remedy = "" if missing is None else f" Run: pip install {missing}"
        raise ImportError(
            f"The directory {url!r} needs a package that is not installed: {error}.{remedy}",
            name=missing,
        ) from error
    except ValueError as error:
        raise ValueError(
            "`directory` must be a local path or a URL whose protocol fsspec knows, such as "
            f"gs:// or s3://. Received: directory={url!r} ({error}). Correct the protocol."
        ) from error
