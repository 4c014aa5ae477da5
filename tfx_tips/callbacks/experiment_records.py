"""The table of studies and the table of trials: opening, changing and reading their rows."""

from collections.abc import Mapping
from pathlib import Path

from tfx_tips._core import files
from tfx_tips._core.processes import ProcessIdentity
from tfx_tips.callbacks.experiment_summary import number, summary, whole_number
from tfx_tips.callbacks.experiment_table import Table, locked

STUDIES_FILE = "studies.csv"
TRIALS_FILE = "trials.csv"
PARAMETER_PREFIX = "parameter/"

_STUDY_KEY = ("study",)
_STUDY_COLUMNS = (
    "study status trials monitor mode best_value best_step best_checkpoint best_trial "
    "configuration notes command working_directory git_commit git_dirty git_untracked git_diff "
    "started_utc updated_utc"
).split()
_TRIAL_KEY = ("study", "trial")
_TRIAL_COLUMNS = (
    "study trial status monitor mode best_value best_step best_checkpoint steps "
    "started_utc updated_utc command working_directory git_commit git_dirty git_untracked git_diff "
    "checkpoint_directory host process process_started"
).split()
# A run that was killed and resumed writes to the same checkpoints.
_SAME_RUN = ("study", "checkpoint_directory", "monitor", "mode")


def list_trials(directory: str | Path, *, study: str | None = None) -> list[dict[str, str]]:
    """Returns the rows of the table of trials: texts by column, without the empty cells.

    `status` is "killed" where the table says "running" and the process, by its id and start, is
    gone from this host. A trial on another host stays "running": this host cannot know.

    Args:
        directory: Local directory of an `ExperimentTracker`.
        study: Only this study's trials.

    Raises:
        FileNotFoundError: If there is no table.
        ValueError: If a table is damaged, or knows no such study.
    """
    trials = _seen_trials(_existing(directory))
    return trials if study is None else _only(study, trials, directory)


def list_studies(directory: str | Path, *, study: str | None = None) -> list[dict[str, str]]:
    """Returns the rows of the table of studies: texts by column, without the empty cells.

    What follows from the trials (how many, the status, the best one) is taken from them now,
    so that it is right also where a process was killed.

    Args:
        directory: Local directory of an `ExperimentTracker`.
        study: Only this one.

    Raises:
        FileNotFoundError: If there is no table.
        ValueError: If a table is damaged, or knows no such study.
    """
    found = _existing(directory)
    rows = {row.get("study", ""): row for row in _read_studies(found).records()}
    trials: dict[str, list[dict[str, str]]] = {name: [] for name in rows}
    for trial in _seen_trials(found):
        trials.setdefault(trial.get("study", ""), []).append(trial)
    studies = []
    for name, of_study in trials.items():
        row = {"study": name, **rows.get(name, {}), **(summary(of_study) if of_study else {})}
        studies.append({column: cell for column, cell in row.items() if cell})
    return studies if study is None else _only(study, studies, directory)


def open_trial(
    directory: Path, trial: Mapping[str, object], study: Mapping[str, object]
) -> dict[str, str]:
    """Adds a trial under the next free number of its study.

    Args:
        directory: Where the tables stand; created if missing.
        trial: Cells of the trial's row, `study` among them.
        study: Further cells of the study's row; empty ones change nothing.

    Returns:
        The new row.
    """
    with locked(directory):
        _remove_strays(directory)
        numbers = [
            whole_number(row.get("trial")) or 0
            for row in _read_trials(directory).records()
            if row.get("study") == trial["study"]
        ]
        return _put(directory, {**trial, "trial": max(numbers, default=0) + 1}, study)


def continue_trial(
    directory: Path, trial: Mapping[str, object], study: Mapping[str, object]
) -> dict[str, str] | None:
    """Goes on with the row of the run that wrote the same checkpoints.

    Args:
        directory: Where the tables stand.
        trial: Cells of the trial's row; `study`, `checkpoint_directory`, `monitor` and `mode`
            say which row.
        study: Further cells of the study's row; empty ones change nothing.

    Returns:
        The row with its earlier cells, or None if there is no such row.
    """
    with locked(directory):
        _remove_strays(directory)
        for row in reversed(_read_trials(directory).records()):
            if all(row.get(name) == trial[name] for name in _SAME_RUN):
                kept: dict[str, object] = {
                    name: row[name] for name in ("trial", "started_utc") if name in row
                }
                return _put(directory, {**trial, **kept}, study)
    return None


def update_trial(directory: Path, trial: Mapping[str, object]) -> None:
    """Changes cells of a trial's row, and with it what its study's row says.

    Args:
        directory: Where the tables stand.
        trial: `study` and `trial`, which name the row, and the cells to change. A table that
            has lost the row gets one with these cells.
    """
    with locked(directory):
        _put(directory, trial, {})


def save_beside(directory: Path, name: str, data: bytes) -> None:
    """Stores a file that a cell names by its path from the tables, unless it is there already."""
    path = directory / name
    with locked(directory):
        path.parent.mkdir(exist_ok=True)
        files.remove_strays(path.parent, of=path.suffix)
        if not path.exists():
            files.write_bytes(path, data)


def _put(
    directory: Path, trial: Mapping[str, object], study: Mapping[str, object]
) -> dict[str, str]:
    trials = _read_trials(directory)
    studies = _read_studies(directory)
    trials.put(_TRIAL_KEY, trial)
    of_study = [_as_seen(row) for row in trials.records() if row.get("study") == trial["study"]]
    given = {name: value for name, value in study.items() if value not in (None, "")}
    studies.put(_STUDY_KEY, {"study": trial["study"], **given, **summary(of_study)})
    # A process killed between the two leaves a study's row behind its trials: `list_studies`
    # looks at the trials, and the study's next trial corrects the row.
    trials.write(directory / TRIALS_FILE)
    studies.write(directory / STUDIES_FILE)
    return next(row for row in of_study if row.get("trial") == str(trial["trial"]))


def _read_trials(directory: Path) -> Table:
    return Table.read(directory / TRIALS_FILE, key=_TRIAL_KEY, columns=_TRIAL_COLUMNS)


def _read_studies(directory: Path) -> Table:
    return Table.read(directory / STUDIES_FILE, key=_STUDY_KEY, columns=_STUDY_COLUMNS)


def _seen_trials(directory: Path) -> list[dict[str, str]]:
    return [_as_seen(row) for row in _read_trials(directory).records()]


def _as_seen(trial: dict[str, str]) -> dict[str, str]:
    if trial.get("status") != "running":
        return trial
    process, started = whole_number(trial.get("process")), number(trial.get("process_started"))
    if process is None or started is None:
        return trial
    gone = ProcessIdentity(trial.get("host", ""), process, started).is_gone()
    return {**trial, "status": "killed"} if gone else trial


def _existing(directory: str | Path) -> Path:
    found = Path(directory)
    if not any((found / name).is_file() for name in (STUDIES_FILE, TRIALS_FILE)):
        raise FileNotFoundError(
            f"A directory with tables of experiments must hold {STUDIES_FILE} or {TRIALS_FILE}. "
            f"Received: directory={str(directory)!r}. Pass the directory that "
            "ExperimentTracker was given."
        )
    return found


def _only(study: str, rows: list[dict[str, str]], directory: str | Path) -> list[dict[str, str]]:
    found = [row for row in rows if row.get("study") == study]
    if not found:
        names = sorted({row.get("study", "") for row in rows})
        raise ValueError(
            f"`study` must be one of the studies in {directory}: "
            f"{', '.join(map(repr, names))}. Received: study={study!r}."
        )
    return found


def _remove_strays(directory: Path) -> None:
    for name in (STUDIES_FILE, TRIALS_FILE):
        files.remove_strays(directory, of=f"-{name}")
