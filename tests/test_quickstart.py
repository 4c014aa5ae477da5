import csv
import json
import subprocess
import sys

import pytest

TWICE = """
import json, sys
from pathlib import Path
from tfx_tips.quickstart import run_quickstart

runs = []
for seed in (3, 3, 4):
    result = run_quickstart(Path(sys.argv[1]), steps=24, seed=seed, verbose=0)
    runs.append({
        "evaluations": [(r.step, r.metrics) for r in result.evaluations],
        "chosen": [result.chosen.step, result.chosen.metrics["val_accuracy"], result.chosen.path],
        "reloaded": result.reloaded_accuracy,
        "checkpoints": [(r.step, r.sha256) for r in result.checkpoints],
    })
print(json.dumps(runs))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    done = subprocess.run(
        [sys.executable, "-c", TWICE, folder], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.multi_process
def test_same_seed_gives_the_same_numbers_and_another_seed_others(runs):
    _, (first, second, other) = runs
    assert first["evaluations"] == second["evaluations"]
    assert first["chosen"][:2] == second["chosen"][:2]
    assert first["evaluations"] != other["evaluations"]


@pytest.mark.multi_process
def test_chosen_checkpoint_is_the_best_evaluation_and_keeps_its_accuracy_when_reloaded(runs):
    _, (first, _, _) = runs
    accuracies = {step: metrics["val_accuracy"] for step, metrics in first["evaluations"]}
    step, accuracy, _ = first["chosen"]
    assert accuracy == max(accuracies.values())
    assert accuracies[step] == accuracy
    assert step == min(s for s, a in accuracies.items() if a == accuracy)
    assert first["reloaded"] == pytest.approx(accuracy, abs=1e-7)


@pytest.mark.multi_process
def test_keeps_three_best_and_the_latest_and_a_row_for_each_run(runs):
    folder, (first, _, _) = runs
    kept = [step for step, _ in first["checkpoints"]]
    assert first["evaluations"][-1][0] == 24
    assert 24 in kept
    assert 3 <= len(kept) <= 4
    assert sorted(path.name for path in folder.glob("run-*")) == ["run-1", "run-2", "run-3"]
    with (folder / "experiments" / "trials.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["completed"] * 3
    assert [row["parameter/seed"] for row in rows] == ["3", "3", "4"]
