"""A model's outputs for the same examples at every evaluation."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from tfx_tips._core.files import remove_strays, write_beside
from tfx_tips._core.validation import require_positive_int
from tfx_tips.data.evaluation_set import EvaluationSet


class PredictionLog:
    """Writes one compressed file for each set and evaluation: `predictions/SET/step-N.npz`.

    A file holds `id` (the examples' places in the set), `label...` and `output...`, an array
    for each part of nested labels and outputs; nothing in it is executable.

    Args:
        log_dir: The folder below which `predictions/` is made.
        examples: How many of the first examples, or which ones by index.
        limit_bytes: Most bytes in one file, before compression.

    Raises:
        ValueError: If an argument is not valid.
    """

    def __init__(self, log_dir: Path, examples: int | Sequence[int], *, limit_bytes: int) -> None:
        if isinstance(examples, np.integer):
            examples = int(examples)
        if np.ndim(examples) == 0:
            require_positive_int("predictions", examples, "Pass a count or a list of indices.")
            self._ids = list(range(cast(int, examples)))
        else:
            self._ids = [int(index) for index in cast(Sequence[int], examples)]
            if not self._ids or min(self._ids) < 0 or len(set(self._ids)) != len(self._ids):
                raise ValueError(
                    "`predictions` must be a count or different indices from 0. "
                    f"Received: predictions={self._ids}. Name each example once."
                )
        require_positive_int("predictions_bytes", limit_bytes, "It limits one file.")
        self._limit_bytes = limit_bytes
        self._directory = log_dir / "predictions"
        self._examples: dict[str, tuple[Any, Any]] = {}
        self._batch_sizes: dict[str, int] = {}
        self._writes = True

    def prepare(self, model: Any, sets: Mapping[str, EvaluationSet], *, writes: bool) -> None:
        """Reads the examples and makes sure that what is written of them fits the budget.

        Args:
            model: Predicts once, for the size.
            sets: The evaluation sets by name.
            writes: Whether this host writes files; every host predicts.

        Raises:
            ValueError: If a set has fewer examples, or a file would be too large.
        """
        self._writes = writes
        for name, evaluation_set in sets.items():
            self._examples[name] = _examples(evaluation_set, self._ids, name)
            self._batch_sizes[name] = evaluation_set.batch_size
            size = sum(part.nbytes for part in self._arrays(model, name).values())
            if size > self._limit_bytes:
                raise ValueError(
                    f"Outputs, labels and ids of {len(self._ids)} examples of {name!r} take "
                    f"{size:,} bytes an evaluation. Received: "
                    f"predictions_bytes={self._limit_bytes:,}. Name fewer examples, or raise "
                    "`predictions_bytes`."
                )
            if writes:
                remove_strays(self._directory / name)

    def write(self, model: Any, step: int) -> None:
        """Predicts and writes each set's file, atomically."""
        for name in self._examples:
            arrays = self._arrays(model, name)
            if self._writes:
                path = self._directory / name / f"step-{step:08d}.npz"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_beside(path, functools.partial(_write_npz, arrays=arrays))

    def _arrays(self, model: Any, name: str) -> dict[str, np.ndarray[Any, Any]]:
        x, labels = self._examples[name]
        count, rows = len(self._ids), self._batch_sizes[name]

        def predicted(start: int) -> Any:
            stop = min(start + rows, count)
            batch = keras.tree.map_structure(lambda part: part[start:stop], x)
            # Under a strategy each replica predicts the batch and their rows are put together.
            return keras.tree.map_structure(
                lambda part: part[: stop - start], model.predict_on_batch(batch)
            )

        chunks = [predicted(start) for start in range(0, count, rows)]
        outputs = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *chunks)
        arrays = {"id": np.array(self._ids), **_parts("output", outputs)}
        return arrays if labels is None else arrays | _parts("label", labels)


@dataclass(frozen=True)
class Predictions:
    """Outputs of the same examples over the course of a training.

    Attributes:
        steps: Optimizer steps of the evaluations, shape `(steps,)`, increasing.
        ids: Places of the examples in their set, shape `(examples,)`.
        labels: By part, shape `(examples, ...)`; a single part is named `label`.
        outputs: By part, shape `(steps, examples, ...)`; a single part is named `output`.
    """

    steps: np.ndarray[Any, Any]
    ids: np.ndarray[Any, Any]
    labels: dict[str, np.ndarray[Any, Any]]
    outputs: dict[str, np.ndarray[Any, Any]]


def read_predictions(log_dir: str | Path, name: str = "val") -> Predictions:
    """Reads what `StepEvaluation(predictions=...)` wrote, lined up by example.

    Examples that are not in every file are left out.

    Args:
        log_dir: As given to `StepEvaluation`.
        name: The set's name.

    Raises:
        FileNotFoundError: If there are no such files.
    """
    directory = Path(log_dir) / "predictions" / name
    paths = sorted(directory.glob("step-*.npz"), key=lambda path: int(path.stem[5:]))
    if not paths:
        raise FileNotFoundError(
            f"No predictions stand in {directory}. Pass `predictions` and `log_dir` to "
            "StepEvaluation, and here the same `log_dir` and the set's name."
        )
    files = []
    for path in paths:
        with np.load(path, allow_pickle=False) as arrays:
            files.append(dict(arrays))
    common = set.intersection(*(set(file["id"].tolist()) for file in files))
    ids = np.array([index for index in files[-1]["id"] if index in common])

    def rows(file: dict[str, Any], part: str) -> Any:
        place = {index: row for row, index in enumerate(file["id"].tolist())}
        return file[part][[place[index] for index in ids.tolist()]]

    return Predictions(
        steps=np.array([int(path.stem[5:]) for path in paths]),
        ids=ids,
        labels={part: rows(files[-1], part) for part in files[-1] if part.startswith("label")},
        outputs={
            part: np.stack([rows(file, part) for file in files])
            for part in files[-1]
            if part.startswith("output")
        },
    )


def _examples(evaluation_set: EvaluationSet, ids: list[int], name: str) -> tuple[Any, Any]:
    """Returns inputs and labels of the examples, in the order of `ids`."""
    found: dict[int, Any] = {}
    wanted, start = set(ids), 0
    for element in evaluation_set.dataset.as_numpy_iterator():
        batch, mask = element if evaluation_set.padded else (element, None)
        rows = len(keras.tree.flatten(batch)[0]) if mask is None else int(mask.sum())
        for index in wanted.intersection(range(start, start + rows)):
            found[index] = keras.tree.map_structure(lambda a, i=index - start: a[i], batch)
        start += rows
        if start > max(ids):
            break
    missing = sorted(wanted.difference(found))
    if missing:
        raise ValueError(
            f"`predictions` names examples that {name!r} does not have. Received: "
            f"{missing[:5]} of a set with {start} examples. Name smaller indices."
        )
    rows_by_part = keras.tree.map_structure(lambda *parts: np.stack(parts), *map(found.get, ids))
    x, y, _ = keras.utils.unpack_x_y_sample_weight(rows_by_part)
    return x, y


def _parts(prefix: str, structure: Any) -> dict[str, np.ndarray[Any, Any]]:
    if not keras.tree.is_nested(structure):
        array = np.asarray(structure)
        if array.dtype == object:  # Strings, which only pickle could store like this.
            array = array.astype(np.bytes_)
        elif array.dtype.kind == "V":  # bfloat16, which NumPy itself does not know.
            array = array.astype("float32")
        return {prefix: array}
    named = structure if isinstance(structure, Mapping) else dict(enumerate(structure))
    parts: dict[str, np.ndarray[Any, Any]] = {}
    for key, part in named.items():
        parts |= _parts(f"{prefix}.{key}", part)
    return parts


def _write_npz(path: Path, *, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
