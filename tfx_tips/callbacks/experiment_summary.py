"""What follows from a study's trials: which is best, and the study's own row."""

from collections.abc import Mapping, Sequence
from typing import cast

from tfx_tips._core.ranking import Mode, best_first

Row = Mapping[str, str]

# What a study's row takes over from the trial that is worth reproducing.
_FROM_BEST_TRIAL = (
    "monitor mode best_value best_step best_checkpoint "
    "command working_directory git_commit git_dirty git_untracked git_diff"
).split()


def summary(trials: Sequence[Row]) -> dict[str, str]:
    """Returns the cells of a study's row that follow from its trials.

    A study runs as long as one of its trials does; else it has the latest trial's status. Where
    no trial has a value yet, the latest one shows how to reproduce it.

    Args:
        trials: The study's rows in the order of their opening; at least one.
    """
    latest = trials[-1]
    best = next(iter(trials_best_first(trials)), None)
    running = any(trial.get("status") == "running" for trial in trials)
    return {
        "status": "running" if running else latest.get("status", ""),
        "trials": str(len(trials)),
        **{name: (best or latest).get(name, "") for name in _FROM_BEST_TRIAL},
        "best_trial": "" if best is None else best.get("trial", ""),
        "started_utc": min(trial.get("started_utc", "") for trial in trials),
        "updated_utc": max(trial.get("updated_utc", "") for trial in trials),
    }


def trials_best_first(trials: Sequence[Row]) -> list[Row]:
    """Sorts a study's trials by what the latest one monitors, earlier ones first among equals.

    Trials that have no value, or monitored something else, cannot be compared: left out.
    """
    if not trials:
        return []
    monitor, mode = trials[-1].get("monitor"), trials[-1].get("mode")
    if mode not in ("min", "max"):
        return []
    rated = []
    for place, trial in enumerate(trials):
        value = number(trial.get("best_value"))
        if value is not None and (trial.get("monitor"), trial.get("mode")) == (monitor, mode):
            rated.append((value, place, trial))
    ranked = best_first(
        rated, mode=cast(Mode, mode), value=lambda item: item[0], age=lambda item: item[1]
    )
    return [trial for _, _, trial in ranked]


def number(text: str | None) -> float | None:
    """Returns the number that a cell holds, or None where it holds none."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def whole_number(text: str | None) -> int | None:
    """Returns the integer that a cell holds, or None where it holds none."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
