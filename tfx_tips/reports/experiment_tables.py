"""Tables of studies and trials for the terminal."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfx_tips._core.text_table import format_table, visible
from tfx_tips.callbacks.experiment_records import PARAMETER_PREFIX, list_studies, list_trials
from tfx_tips.callbacks.experiment_summary import number, trials_best_first, whole_number
from tfx_tips.callbacks.experiment_table import cell_text

_LONGEST_TEXT = 40

# Headers and columns; what is longest and not cut, since one copies it, stands last.
_STUDY_COLUMNS = (
    ("study", "study"),
    ("status", "status"),
    ("trials", "trials"),
    ("monitor", "monitor"),
    ("best", "best_value"),
    ("at step", "best_step"),
    ("by trial", "best_trial"),
    ("updated (UTC)", "updated_utc"),
    ("configuration", "configuration"),
    ("notes", "notes"),
    ("checkpoint", "best_checkpoint"),
)
_FIRST_TRIAL_COLUMNS = (
    ("study", "study"),
    ("trial", "trial"),
    ("status", "status"),
    ("monitor", "monitor"),
    ("best", "best_value"),
    ("at step", "best_step"),
    ("of steps", "steps"),
)
_LAST_TRIAL_COLUMNS = (
    ("started (UTC)", "started_utc"),
    ("commit", "git_commit"),
    ("checkpoint", "best_checkpoint"),
)
# What a study's row has no room for.
_DETAILS = (
    ("configuration", "configuration"),
    ("notes", "notes"),
    ("command", "command"),
    ("working directory", "working_directory"),
    ("commit", "git_commit"),
    ("changes since", "git_diff"),
)
_COMMIT_DIGITS = 10


def studies_table(directory: str | Path, *, study: str | None = None) -> str:
    """Lays out the studies in the order in which they were begun, one a line.

    Args:
        directory: Local directory of an `ExperimentTracker`.
        study: Only this one; how to repeat its best trial follows below the table.

    Raises:
        FileNotFoundError: If there is no table.
        ValueError: If a table is damaged, or knows no such study.
    """
    studies = list_studies(directory, study=study)
    text = _table(_STUDY_COLUMNS, studies)
    if study is None:
        return text
    found = studies[0]
    lines = [
        f"{header}: {visible(found[column])}" for header, column in _DETAILS if column in found
    ]
    return "\n".join([text, "", *lines])


def trials_table(directory: str | Path, *, study: str | None = None) -> str:
    """Lays out the trials, those of a study together and the best first.

    Trials that cannot be compared (no value, or of another metric) follow as they were begun.

    Args:
        directory: Local directory of an `ExperimentTracker`.
        study: Only this study's.

    Raises:
        FileNotFoundError: If there is no table.
        ValueError: If a table is damaged, or knows no such study.
    """
    trials = list_trials(directory, study=study)
    by_study: dict[str, list[dict[str, str]]] = {}
    for trial in trials:
        by_study.setdefault(trial.get("study", ""), []).append(trial)
    rows: list[Mapping[str, str]] = []
    for of_study in by_study.values():
        ranked = trials_best_first(of_study)
        in_order = {id(trial) for trial in ranked}
        rows += [*ranked, *(trial for trial in of_study if id(trial) not in in_order)]
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(PARAMETER_PREFIX))
    parameters = [(name.removeprefix(PARAMETER_PREFIX), name) for name in names]
    return _table([*_FIRST_TRIAL_COLUMNS, *parameters, *_LAST_TRIAL_COLUMNS], rows)


def _table(columns: Sequence[tuple[str, str]], rows: Sequence[Mapping[str, str]]) -> str:
    """Lays rows out, without the columns in which no row has anything."""
    used = [(header, column) for header, column in columns if any(column in row for row in rows)]
    return format_table(
        [header for header, _ in used],
        [[_shown(column, row) for _, column in used] for row in rows],
    )


def _shown(column: str, row: Mapping[str, str]) -> object:
    cell = row.get(column)
    if cell is None or column == "study":
        return cell
    if column == "git_commit":
        return cell[:_COMMIT_DIGITS] + (" + changes" if row.get("git_dirty") == "True" else "")
    if column == "best_checkpoint":
        below = Path.cwd()
        return os.path.relpath(cell) if below in Path(cell).parents else cell
    value = whole_number(cell) if cell.lstrip("-").isdecimal() else number(cell)
    if value is not None and cell_text(value) == cell:
        return value
    return cell if len(cell) <= _LONGEST_TEXT else f"{cell[: _LONGEST_TEXT - 1]}…"
