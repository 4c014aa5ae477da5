"""A directory of checkpoints: storing, listing, removing them, and reading what is intact.

The directory is flat. A checkpoint is a data file `step-00000012.keras` (or
`.weights.h5`) and a manifest `step-00000012.json`, which is written after it and removed
before it. So a checkpoint exists if and only if its manifest does and the data file has
the size that the manifest records; nothing that a kill leaves behind looks like one.
Whatever else stands in the directory is never touched.
"""

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from tfx_tips._core.errors import CheckpointError, DamagedCheckpointError
from tfx_tips._core.files import STRAY_PREFIX, sha256_of
from tfx_tips._core.ranking import Mode
from tfx_tips._core.validation import require_one_of, require_positive_int
from tfx_tips.callbacks.checkpoint_folder import open_folder
from tfx_tips.callbacks.checkpoint_record import (
    CheckpointRecord,
    json_text,
    manifest_text,
    parse_manifest,
    record_from_manifest,
    running_versions,
)

SUFFIXES = (".keras", ".weights.h5")

_logger = logging.getLogger(__name__)

_STEM = r"(?P<stem>step-\d{8,}(?:-\d+)?)"
_DATA = re.compile(rf"{_STEM}(?:{'|'.join(map(re.escape, SUFFIXES))})")
_MANIFEST = re.compile(rf"{_STEM}\.json")
_UNFINISHED = re.compile(rf"{re.escape(STRAY_PREFIX)}[0-9a-f]+-(?:{_STEM}\..*)")
_UNKNOWN_HASH = "0" * 64


class CheckpointStore:
    """The checkpoints of one directory.

    One process writes to a directory at a time; any number may read meanwhile. Nothing is
    written, not even the directory made, before the first `add`.

    Args:
        directory: A local path, or a URL that fsspec knows, such as `gs://bucket/run`.

    Raises:
        ImportError: If the URL's protocol needs a package that is not installed.
        ValueError: If the protocol is unknown.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.fspath(directory)
        self._folder = open_folder(directory)

    def records(self) -> list[CheckpointRecord]:
        """Returns the checkpoints from the oldest to the newest; the sizes are checked.

        What is damaged (no readable manifest, no data file of the recorded size) is left
        out, with one logged warning for all of it.
        """
        records, damaged = self._scan()
        if damaged:
            _logger.warning(
                "Left out of the checkpoints in %s as damaged: %s. Delete these files, or copy "
                "them again where they came from.",
                self.directory,
                "; ".join(f"{name} ({reason})" for name, reason in damaged.items()),
            )
        return records

    def add(
        self,
        write: Callable[[Path], None],
        *,
        suffix: str,
        step: int,
        expected_bytes: int | None = None,
        **fields: Any,
    ) -> CheckpointRecord:
        """Stores one more checkpoint; removes none.

        Costs one pass over the file for its checksum, in the calling thread.

        Args:
            write: Writes the data file at the local path it is given, which ends in `suffix`.
            suffix: ".keras", or ".weights.h5" for weights only.
            step: Finished optimizer steps of the whole run; names the files.
            expected_bytes: The file's size where it can be told before, so that a full disk
                is noticed before anything is written.
            **fields: Those of `CheckpointRecord` that only the caller knows: `epoch`, `batch`,
                `metrics`, `monitor`, `mode` and, where known, `directions`, `seed`,
                `total_steps`, `random_generators`.

        Raises:
            NotEnoughSpaceError: If the disk is full; what was there before is untouched.
            ValueError: If a field is not of its kind; nothing is written then.
        """
        require_one_of("suffix", suffix, SUFFIXES)
        require_positive_int("step", step, "Pass the finished optimizer steps.", minimum=0)
        stem = _free_stem(step, self._folder.sizes())
        file = stem + suffix
        record = CheckpointRecord(
            **{
                "path": self._folder.location(file),
                "step": step,
                "sequence": 1 + max((r.sequence for r in self._scan()[0]), default=0),
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "versions": running_versions(),
                "size_bytes": 0,
                "sha256": _UNKNOWN_HASH,
                "weights_only": suffix == ".weights.h5",
                **fields,
            }
        )
        try:
            size, sha256 = self._folder.write(file, write, expected_bytes=expected_bytes)
            record = replace(record, size_bytes=size, sha256=sha256)
            self._folder.write_text(f"{stem}.json", manifest_text(record, file=file))
        except BaseException:
            with contextlib.suppress(Exception):
                self._folder.remove(file)
            raise
        return record

    def annotate(
        self,
        record: CheckpointRecord,
        metrics: Mapping[str, float],
        *,
        directions: Mapping[str, Mode] | None = None,
    ) -> CheckpointRecord:
        """Adds metrics, measured later, to a checkpoint's manifest, in one step.

        Args:
            record: The checkpoint.
            metrics: Names and numbers; a name that is there already gets the new number.
            directions: "min" or "max" for those of them where it is known.

        Returns:
            The record as it is now.

        Raises:
            CheckpointError: If the checkpoint has been removed meanwhile.
        """
        manifest = _manifest_name(record)
        try:
            with self._folder.open(manifest) as file:
                values = parse_manifest(file.read())
        except FileNotFoundError as error:
            raise CheckpointError(
                f"The checkpoint of step {record.step} is no longer in {self.directory}, so "
                "nothing can be recorded with it. Choose another one."
            ) from error
        known = record_from_manifest(values, path=record.path)
        annotated = replace(
            known,
            metrics={**known.metrics, **metrics},
            directions={**known.directions, **(directions or {})},
        )
        # Fields that a later version may have added stay as they are.
        values |= {"metrics": annotated.metrics, "directions": annotated.directions}
        self._folder.write_text(manifest, json_text(values))
        return annotated

    def remove(self, record: CheckpointRecord) -> None:
        """Deletes a checkpoint, the manifest first; nothing happens where it is gone already."""
        self._folder.remove(_manifest_name(record))
        self._folder.remove(_file_name(record))

    def clean(self) -> list[str]:
        """Deletes what a killed writer has left, and returns the names.

        That is data without a manifest and temporary files. To be called by the writer at
        the start of a run, not by readers: a file that is just being written looks the same.
        """
        names = self._folder.sizes()
        strays = []
        for name in sorted(names):
            data = _DATA.fullmatch(name)
            if _UNFINISHED.fullmatch(name) or (data and f"{data['stem']}.json" not in names):
                self._folder.remove(name)
                strays.append(name)
        return strays

    def verified(self, record: CheckpointRecord) -> CheckpointRecord:
        """Returns the record after comparing its data file with it, at the cost of reading it.

        Raises:
            DamagedCheckpointError: If the file is gone or is not what was written.
        """
        name = _file_name(record)
        try:
            with self._folder.open(name) as file:
                _require_intact(record, hashlib.file_digest(file, "sha256").hexdigest())
        except FileNotFoundError as error:
            raise _gone(record) from error
        return record

    @contextlib.contextmanager
    def local_file(self, record: CheckpointRecord) -> Iterator[Path]:
        """Gives the local path of a checkpoint's verified data file.

        A remote file is downloaded for as long as the context is open.

        Raises:
            DamagedCheckpointError: If the file is gone or is not what was written.
        """
        with contextlib.ExitStack() as stack:
            try:
                path = stack.enter_context(self._folder.local_copy(_file_name(record)))
                _require_intact(record, sha256_of(path))
            except FileNotFoundError as error:
                raise _gone(record) from error
            yield path

    def _scan(self) -> tuple[list[CheckpointRecord], dict[str, str]]:
        manifests = {}
        for name in sorted(self._folder.sizes()):
            if _MANIFEST.fullmatch(name):
                # One that is gone was removed since the folder was listed.
                with contextlib.suppress(FileNotFoundError), self._folder.open(name) as file:
                    manifests[name] = file.read()
        # Listed again, since data is removed after its manifest: what is missing now while
        # the manifest is still there has not been removed by a writer.
        sizes = self._folder.sizes()
        records, damaged = [], {}
        for name, text in manifests.items():
            if name in sizes:
                try:
                    records.append(self._read(name, text, sizes))
                except ValueError as error:
                    damaged[name] = str(error)
        return sorted(records, key=lambda record: record.sequence), damaged

    def _read(self, manifest: str, text: bytes, sizes: Mapping[str, int]) -> CheckpointRecord:
        values = parse_manifest(text)
        file = values.get("file")
        data = _DATA.fullmatch(file) if isinstance(file, str) else None
        if data is None or f"{data['stem']}.json" != manifest:
            raise ValueError(f"it names {file!r} as its data file")
        record = record_from_manifest(values, path=self._folder.location(data[0]))
        if data[0] not in sizes:
            raise ValueError(f"{file} is missing")
        if sizes[data[0]] != record.size_bytes:
            raise ValueError(
                f"{file} has {sizes[data[0]]:,} bytes, recorded are {record.size_bytes:,}"
            )
        return record


def _free_stem(step: int, names: Mapping[str, int]) -> str:
    found = (_DATA.fullmatch(name) or _MANIFEST.fullmatch(name) for name in names)
    taken = {match["stem"] for match in found if match}
    stem = first = f"step-{step:08d}"
    number = 0
    while stem in taken:
        number += 1
        stem = f"{first}-{number}"
    return stem


def _file_name(record: CheckpointRecord) -> str:
    return PurePath(record.path).name


def _manifest_name(record: CheckpointRecord) -> str:
    data = _DATA.fullmatch(_file_name(record))
    if data is None:
        raise ValueError(
            "`record` must be one that this directory's list holds. "
            f"Received: record.path={record.path!r}. Take it from `list_checkpoints`."
        )
    return f"{data['stem']}.json"


def _require_intact(record: CheckpointRecord, sha256: str) -> None:
    if sha256 != record.sha256:
        raise DamagedCheckpointError(
            f"The file {record.path} is not what was written: its SHA-256 is {sha256}, recorded "
            f"is {record.sha256}."
        )


def _gone(record: CheckpointRecord) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"The file {record.path} is no longer there.")
