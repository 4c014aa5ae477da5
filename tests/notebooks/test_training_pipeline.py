"""The notebook runs as it is, at a smaller size and with what is installed here."""

from pathlib import Path

import nbclient
import nbformat
import pytest

PATH = Path(__file__).parents[2] / "notebooks" / "01_training_pipeline.ipynb"
# What the test changes, so that it must be there.
SMALLER = {"EPOCHS = 20\n": "EPOCHS = 2\n", "EVERY_STEPS = 50\n": "EVERY_STEPS = 10\n"}


def read():
    return nbformat.read(PATH, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_outputs_are_stripped():
    for cell in code_cells(read()):
        assert cell.outputs == []
        assert cell.execution_count is None


def test_has_a_colab_badge_and_installs_first_what_fits_the_runtime():
    notebook = read()
    assert "colab-badge.svg" in notebook.cells[0].source
    assert PATH.name in notebook.cells[0].source
    install = code_cells(notebook)[0].source
    for package in ("tensorflow-tpu", "tensorflow[and-cuda]", "tensorflow-cpu"):
        assert f'"{package}"' in install
    # The package comes last, and no part of it names a TensorFlow that could replace another.
    assert install.rstrip().endswith("pip_install(PACKAGE)")
    assert 'PACKAGE = "tfx-tips[quickstart] @' in install


@pytest.mark.multi_process
def test_runs_from_data_to_the_studys_table(tmp_path):
    notebook = read()
    install = code_cells(notebook)[0]
    assert "pip_install" in install.source
    install.source = "pass"
    sources = "".join(cell.source for cell in code_cells(notebook))
    for original, smaller in SMALLER.items():
        assert sources.count(original) == 1
        for cell in code_cells(notebook):
            cell.source = cell.source.replace(original, smaller)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    texts = [output.get("text", "") for cell in code_cells(notebook) for output in cell.outputs]
    printed = "".join(texts)
    assert "█" in printed
    assert "after reloading" in printed
    assert "digits  completed" in printed
    assert list((tmp_path / "training-pipeline" / "checkpoints").glob("*.keras"))
