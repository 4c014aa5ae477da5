"""What is known about one checkpoint, and the manifest that holds it on disk."""

import json
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from numbers import Real
from typing import Any

from tfx_tips._core.ranking import Mode
from tfx_tips._version import __version__

# Raised when a manifest's meaning changes so that older readers would be wrong.
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """One checkpoint: where it stands in training, what was measured, what its file must be.

    Attributes:
        path: The data file: an absolute path that `keras.models.load_model` or
            `load_weights` reads, or for a remote directory its URL.
        sequence: Age within the directory; larger is newer.
        step: Finished optimizer steps of the whole run.
        epoch: The epoch that the checkpoint lies in, counted from 0.
        batch: Finished batches of that epoch.
        metrics: All single numbers known then; NaN and infinities included.
        monitor: The metric that ranked this run's checkpoints.
        mode: Whether a smaller ("min") or larger ("max") `monitor` is better.
        directions: "min" or "max" for each metric where it is known.
        time: When it was written, in ISO format, UTC.
        seed: The run's seed, or None where unknown.
        versions: Of this package, Python, Keras and its backend.
        size_bytes: The data file's bytes.
        sha256: The data file's SHA-256 in hexadecimal.
        weights_only: Whether the file holds no model, only what `load_weights` reads.
        total_steps: Steps that the run was planned to have, or None where unknown.
        random_generators: State of the model's random generators, as resuming needs it.

    Raises:
        ValueError: If a value is not of its kind.
    """

    path: str
    sequence: int
    step: int
    epoch: int
    batch: int
    metrics: Mapping[str, float] = field(hash=False)
    monitor: str
    mode: Mode
    directions: Mapping[str, Mode] = field(hash=False, default_factory=dict)
    time: str
    seed: int | None = None
    versions: Mapping[str, str] = field(hash=False, default_factory=dict)
    size_bytes: int
    sha256: str
    weights_only: bool
    total_steps: int | None = None
    random_generators: list[Any] = field(hash=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        for name, (is_valid, expectation) in _RULES.items():
            value = getattr(self, name)
            if not is_valid(value):
                raise ValueError(
                    f"A checkpoint's `{name}` must be {expectation}. Received: {name}={value!r}."
                )
        numbers = {name: float(value) for name, value in self.metrics.items()}
        object.__setattr__(self, "metrics", numbers)
        object.__setattr__(self, "directions", dict(self.directions))
        object.__setattr__(self, "versions", dict(self.versions))

    @property
    def share_of_budget(self) -> float | None:
        """At what share of the planned steps it lies, or None where the plan is unknown."""
        return self.step / self.total_steps if self.total_steps else None


def manifest_text(record: CheckpointRecord, *, file: str) -> str:
    """Returns the manifest of a checkpoint whose data file has the name `file`."""
    values = asdict(record)
    del values["path"]
    return json_text({"format": FORMAT, "file": file, **values})


def json_text(value: Any) -> str:
    """Returns a JSON document; NaN and infinities are written as Python and most others read."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def parse_manifest(text: bytes) -> dict[str, Any]:
    """Reads a manifest's JSON object.

    Raises:
        ValueError: If it is none, or of a format that this version does not know.
    """
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    if values.get("format") != FORMAT:
        raise ValueError(f"it has format {values.get('format')!r}, this version reads {FORMAT}")
    return values


def record_from_manifest(values: Mapping[str, Any], *, path: str) -> CheckpointRecord:
    """Makes the record that a manifest describes; fields it does not know are left aside.

    Args:
        values: As `parse_manifest` gives them.
        path: Where the data file stands.

    Raises:
        ValueError: If a field is missing or not of its kind.
    """
    known = {f.name: values[f.name] for f in fields(CheckpointRecord) if f.name in values}
    try:
        return CheckpointRecord(**{**known, "path": path})
    except TypeError as error:
        raise ValueError(f"a field is missing: {error}") from error


def scalar_metrics(logs: Mapping[str, Any]) -> dict[str, float]:
    """Returns those values of `logs` that are single numbers, as floats."""
    numbers = {}
    for name, value in logs.items():
        if isinstance(value, Real) or getattr(value, "shape", None) == ():
            numbers[name] = float(value)
    return numbers


def running_versions() -> dict[str, str]:
    """Returns the versions of this process' Python, this package and, if loaded, Keras."""
    versions = {"python": platform.python_version(), "tfx_tips": __version__}
    keras = sys.modules.get("keras")
    if keras is not None:
        backend = keras.backend.backend()
        versions |= {"keras": keras.__version__, "backend": backend}
        if backend in sys.modules:
            versions[backend] = sys.modules[backend].__version__
    return versions


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_mapping_to(is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        return isinstance(value, Mapping) and all(
            isinstance(name, str) and is_valid(item) for name, item in value.items()
        )

    return check


def _is_number(value: object) -> bool:
    if not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_mode(value: object) -> bool:
    return value in ("min", "max")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_COUNT = (_is_count, "an integer of at least 0")
_TEXT = (_is_text, "text")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "path": _TEXT,
    "sequence": _COUNT,
    "step": _COUNT,
    "epoch": _COUNT,
    "batch": _COUNT,
    "metrics": (_is_mapping_to(_is_number), "names with single numbers"),
    "monitor": _TEXT,
    "mode": (_is_mode, "'min' or 'max'"),
    "directions": (_is_mapping_to(_is_mode), "names with 'min' or 'max'"),
    "time": _TEXT,
    "seed": (lambda value: value is None or type(value) is int, "an integer or None"),
    "versions": (_is_mapping_to(_is_text), "names with text"),
    "size_bytes": _COUNT,
    "sha256": (
        lambda value: _is_text(value) and re.fullmatch("[0-9a-f]{64}", value) is not None,
        "64 hexadecimal digits",
    ),
    "weights_only": (lambda value: isinstance(value, bool), "True or False"),
    "total_steps": (
        lambda value: value is None or (_is_count(value) and value > 0),
        "an integer of at least 1 or None",
    ),
    "random_generators": (lambda value: isinstance(value, list), "a list"),
}
