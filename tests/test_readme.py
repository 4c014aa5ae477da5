"""Every snippet of the README runs, and its table says what is true."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# What each line of the table leaves in "c" after two epochs of ten steps with evaluations
# every ten steps: the possible numbers of files, their ending, the steps that may be among them.
AFTERWARDS = {
    'ModelCheckpoint("c/{epoch}.keras")': ({2}, ".keras", {10, 20}),
    'ModelCheckpoint("c/best.keras", save_best_only=True)': ({1}, ".keras", {10, 20}),
    'ModelCheckpoint("c/best.keras", monitor="val_accuracy", mode="max", save_best_only=True)': (
        {1},
        ".keras",
        {10, 20},
    ),
    'ModelCheckpoint("c/best.weights.h5", save_weights_only=True, save_best_only=True)': (
        {1},
        ".weights.h5",
        {10, 20},
    ),
    'ModelCheckpoint("c/last.keras", save_freq=5)': ({3, 4}, ".keras", {5, 10, 15, 20}),
    'BackupAndRestore("backup")': ({2}, ".keras", {10, 20}),
}


def code_blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def table_rows():
    section = README.split("## From `ModelCheckpoint`")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [re.match(r"\| `(.*?)` \| `(.*)` \| (.*) \|$", line).groups() for line in lines]


def run_script(script, cwd):
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


@pytest.fixture(scope="module")
def snippets_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    blocks = code_blocks(README, "python")
    assert len(blocks) >= 6
    done = run_script("\n".join(blocks), folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.multi_process
def test_python_snippets_run_in_their_order(snippets_run):
    folder, output = snippets_run
    assert re.search(r"step \d+: \d+\.\d%, .*\.keras", output)
    assert "[10, 20, 30, 40, 50" in output
    assert (folder / "run" / "evaluations.csv").exists()
    assert list((folder / "run").glob("events.out.tfevents.*"))
    assert re.search(r"Best val_loss .* of the budget", output)


@pytest.mark.multi_process
def test_terminal_snippets_run_on_what_the_python_snippets_left(snippets_run):
    folder, _ = snippets_run
    commands = [block.strip() for block in code_blocks(README, "sh")[2:]]
    assert commands
    for command in commands:
        name, *arguments = command.split()
        assert name == "tfx-tips"
        done = subprocess.run(
            [sys.executable, "-m", "tfx_tips", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_first_example_is_ten_lines():
    first = [line for line in code_blocks(README, "python")[0].splitlines() if line.strip()]
    assert len(first) <= 10


def test_table_has_exactly_the_lines_that_are_checked():
    assert [keras for keras, _, _ in table_rows()] == list(AFTERWARDS)


TABLE_SCRIPT = """
import json, os, shutil
import keras
from keras.callbacks import BackupAndRestore, ModelCheckpoint
from tfx_tips.callbacks import BestNCheckpoint, StepEvaluation, list_checkpoints, resume_fit
from tfx_tips.data import from_step
from tfx_tips.quickstart import digits, small_convolutional_net

(x, y), validation = digits(seed=0)
x, y = x[:320], y[:320]
make_batch = lambda step: (x[step % 10 * 32:][:32], y[step % 10 * 32:][:32])
make_dataset = lambda start: from_step(make_batch, start)
found = []
for theirs, ours in {rows}:
    eval(theirs)  # what the left side says is a callback of Keras
    shutil.rmtree("c", ignore_errors=True)
    model = small_convolutional_net()
    evaluation = StepEvaluation(validation, every_steps=10)
    made = eval(ours)
    if not isinstance(made, keras.callbacks.History):
        model.fit(x, y, epochs=2, shuffle=False, verbose=0, callbacks=[evaluation, made])
    files = sorted(name for name in os.listdir("c") if not name.endswith(".json"))
    found.append((files, [record.step for record in list_checkpoints("c")]))
print(json.dumps(found))
"""


@pytest.mark.multi_process
def test_each_line_of_the_table_does_what_it_says(tmp_path):
    rows = [(theirs, ours) for theirs, ours, _ in table_rows()]
    done = run_script(TABLE_SCRIPT.replace("{rows}", repr(rows)), tmp_path)
    assert done.returncode == 0, done.stderr
    for (theirs, _), (files, steps) in zip(
        rows, json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        counts, ending, possible = AFTERWARDS[theirs]
        assert len(files) == len(steps), theirs
        assert len(files) in counts, theirs
        assert all(name.endswith(ending) for name in files), theirs
        assert set(steps) <= possible, theirs
