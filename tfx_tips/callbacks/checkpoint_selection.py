"""Which checkpoints a directory holds, and which of them is the best."""

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

from tfx_tips._core.errors import CheckpointError, DamagedCheckpointError, NoFiniteMetricError
from tfx_tips._core.ranking import Mode, best_first, require_mode
from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
from tfx_tips.callbacks.checkpoint_store import CheckpointStore

_logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def list_checkpoints(directory: str | os.PathLike[str]) -> list[CheckpointRecord]:
    """Returns the checkpoints of a directory from the oldest to the newest.

    Needs neither TensorFlow nor Keras. Manifests are read and the files' sizes compared;
    what is damaged is left out with one logged warning.

    Args:
        directory: A local path, or a URL that fsspec knows. One that does not exist holds
            no checkpoints.

    Example:
        for record in list_checkpoints("ckpt"):
            print(record.step, record.metrics["val_loss"], record.path)
    """
    return CheckpointStore(directory).records()


def best_checkpoint(
    directory: str | os.PathLike[str], *, monitor: str | None = None, mode: str = "auto"
) -> CheckpointRecord:
    """Returns the best checkpoint of a directory, after comparing its file's checksum.

    Only checkpoints that record `monitor` take part. A NaN is never chosen, an infinity
    only where nothing is finite; of equal values the earlier wins. A file that does not
    match its checksum is passed over, with a logged warning, for the next best.

    Needs neither TensorFlow nor Keras. Costs reading the chosen file once.

    Args:
        directory: A local path, or a URL that fsspec knows.
        monitor: Any metric that the checkpoints record; by default the one that ranked the
            newest.
        mode: "min", "max", or "auto" for the recorded direction.

    Raises:
        CheckpointError: If the directory holds no checkpoint, or none has a value yet.
        NoFiniteMetricError: If all values are NaN.
        DamagedCheckpointError: If no candidate's file is intact.
        ValueError: If no checkpoint records `monitor`, or "auto" does not decide.

    Example:
        model = keras.models.load_model(best_checkpoint("ckpt", monitor="val_auc").path)
    """
    store = CheckpointStore(directory)
    ranked = rank_checkpoints(
        store.records(), directory=store.directory, monitor=monitor, mode=mode
    )
    return first_intact(ranked, store.verified)


def rank_checkpoints(
    records: Sequence[CheckpointRecord], *, directory: str, monitor: str | None, mode: str
) -> list[CheckpointRecord]:
    """Returns the checkpoints that may be chosen, the best first; at least one.

    Args:
        records: A directory's checkpoints, from the oldest to the newest.
        directory: Where they stand, for the errors.
        monitor: As for `best_checkpoint`.
        mode: As for `best_checkpoint`.

    Raises:
        CheckpointError: As for `best_checkpoint`, also the errors derived from it.
        ValueError: As for `best_checkpoint`.
    """
    require_mode(mode)
    if not records:
        raise CheckpointError(
            f"There is no checkpoint in {directory!r}. Looked for a manifest such as "
            "step-00000100.json with its data file beside it. Correct the directory, or wait "
            "until the run has stored one."
        )
    name = records[-1].monitor if monitor is None else monitor
    holding = [record for record in records if name in record.metrics]
    if not holding:
        raise _nothing_recorded(records, name, directory, asked=monitor is not None)
    direction = _direction(holding, name) if mode == "auto" else cast(Mode, mode)
    candidates = [record for record in holding if not math.isnan(record.metrics[name])]
    if not candidates:
        raise NoFiniteMetricError(
            f"No checkpoint in {directory!r} can be chosen by {name!r}: all "
            f"{len(holding)} recorded values are NaN. Choose by another metric, or take one "
            "from `list_checkpoints`."
        )
    return best_first(
        candidates,
        mode=direction,
        value=lambda record: record.metrics[name],
        age=lambda record: record.sequence,
    )


def first_intact(
    ranked: Iterable[CheckpointRecord], use: Callable[[CheckpointRecord], Result]
) -> Result:
    """Returns what `use` makes of the first checkpoint that it does not find damaged.

    Args:
        ranked: Checkpoints, the preferred one first.
        use: Raises DamagedCheckpointError for a checkpoint that shall be passed over, with a
            logged warning.

    Raises:
        DamagedCheckpointError: If all are damaged.
    """
    damaged = []
    for record in ranked:
        try:
            return use(record)
        except DamagedCheckpointError as error:
            _logger.warning("%s The next one is tried.", error)
            damaged.append(record.path)
    raise DamagedCheckpointError(
        f"None of the checkpoints that could be chosen is intact: {', '.join(damaged)}. Copy "
        "them again where they came from, or resume from an earlier copy of the directory."
    )


def _direction(holding: Sequence[CheckpointRecord], name: str) -> Mode:
    for record in reversed(holding):
        known = record.mode if record.monitor == name else record.directions.get(name)
        if known is not None:
            return known
    raise ValueError(
        f"`mode='auto'` cannot tell whether a larger or a smaller {name!r} is better: no "
        f"checkpoint records it. Received: monitor={name!r}, mode='auto'. Pass `mode='max'` or "
        "`mode='min'`."
    )


def _nothing_recorded(
    records: Sequence[CheckpointRecord], name: str, directory: str, *, asked: bool
) -> Exception:
    recorded = sorted({metric for record in records for metric in record.metrics})
    names = ", ".join(recorded) or "none"
    if asked:
        return ValueError(
            f"`monitor` must be a metric that a checkpoint in {directory!r} records. "
            f"Received: monitor={name!r}. Recorded are: {names}."
        )
    return CheckpointError(
        f"No checkpoint in {directory!r} has a value of {name!r}, by which its run ranks them, "
        f"yet. Recorded are: {names}. Choose by one of these, or take one from "
        "`list_checkpoints`."
    )
