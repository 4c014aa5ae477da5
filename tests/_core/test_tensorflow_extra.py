"""What is said where TensorFlow is missing."""

import subprocess
import sys

import pytest

from tfx_tips._core.tensorflow_extra import explain_missing_tensorflow

LINES = [
    "pip install 'tfx-tips[tensorflow]'",
    "pip install 'tfx-tips[cpu]'",
    "pip install 'tfx-tips[tpu]'",
]


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow.data"])
def test_missing_tensorflow_becomes_an_import_error_with_the_three_lines(name):
    missing = ModuleNotFoundError(f"No module named {name!r}", name=name)

    with pytest.raises(ImportError) as caught, explain_missing_tensorflow():
        raise missing

    assert not isinstance(caught.value, ModuleNotFoundError)
    assert all(line in str(caught.value) for line in LINES)
    assert caught.value.name == "tensorflow"
    assert caught.value.__cause__ is missing


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'tensorflow_io'", name="tensorflow_io"),
        ModuleNotFoundError("No module named 'x'"),
        ImportError("cannot import name 'x' from 'tensorflow'", name="tensorflow"),
        ValueError("x"),
    ],
)
def test_every_other_error_passes_unchanged(error):
    with pytest.raises(type(error)) as caught, explain_missing_tensorflow():
        raise error

    assert caught.value is error


def test_without_an_error_nothing_happens():
    with explain_missing_tensorflow():
        value = 7

    assert value == 7


def test_callback_on_a_machine_without_tensorflow_shows_the_lines():
    script = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from tfx_tips.callbacks import StepEvaluation"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert finished.returncode == 1
    assert all(line in finished.stderr for line in LINES)
