"""Every Python snippet of the pages in docs/ runs, each page on its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"

# What a page's reader has already: imports, data, a model.
DIGITS = """
import keras, numpy as np
from tfx_tips.callbacks import *
from tfx_tips.data import from_step
from tfx_tips.quickstart import digits, small_convolutional_net
(x, y), validation = digits(seed=0)
model = small_convolutional_net()
"""
REGRESSION = """
import keras, numpy as np
x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
x_val, y_val = x[:64], y[:64]
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
"""
BEFORE = {
    "checkpoints.md": REGRESSION,
    "evaluation.md": DIGITS,
    "experiments.md": "",
    "ghost_batch_normalization.md": "",
    "resuming.md": DIGITS,
}


def snippets(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_every_page_with_snippets_is_run():
    assert {p.name for p in DOCS.glob("*.md") if snippets(p.name)} == set(BEFORE)


@pytest.mark.multi_process
@pytest.mark.parametrize("page", sorted(BEFORE))
def test_snippets_of_a_page_run_in_their_order(page, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([BEFORE[page], *snippets(page)])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr
