"""The package's front: what importing it costs, and which names are public."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tfx_tips

ROOT = Path(tfx_tips.__file__).parent
PUBLIC_PACKAGES = [name for name in tfx_tips.__all__ if name != "__version__"]
# Importing this one registers its classes with Keras, for loading saved models.
NEEDS_KERAS = "layers"


def imported_by(statement):
    """Runs a statement in a fresh interpreter; returns the packages it has imported."""
    script = f"{statement}\nimport sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(finished.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import tfx_tips",
        *(f"import tfx_tips.{name}" for name in PUBLIC_PACKAGES if name != NEEDS_KERAS),
    ],
)
def test_import_brings_neither_tensorflow_nor_keras(statement):
    imported = imported_by(statement)

    assert "tfx_tips" in imported
    assert imported.isdisjoint({"tensorflow", "keras"})


def test_importing_layers_registers_them_for_loading():
    script = (
        "import tfx_tips.layers, keras\n"
        "print(keras.saving.get_registered_object('tfx_tips>GhostBatchNormalization').__name__)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert finished.stdout.splitlines()[-1] == "GhostBatchNormalization"


def test_top_level_import_brings_no_third_party_package():
    before = imported_by("pass")

    assert imported_by("import tfx_tips") - before - set(sys.stdlib_module_names) == {"tfx_tips"}


def test_subpackages_are_there_without_being_imported_by_name():
    script = "import tfx_tips; print(tfx_tips.distribute.num_hosts.__name__)"
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert finished.stdout == "num_hosts\n"


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tfx_tips' has no attribute 'nothing'"):
        _ = tfx_tips.nothing


def test_public_packages_are_the_folders_that_users_import_from():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}

    assert set(PUBLIC_PACKAGES) == folders - {"_core", "cli"}
    assert dir(tfx_tips) == sorted(tfx_tips.__all__)


def names_given_by(source):
    """Returns the names that a package's file takes from its modules or defines itself."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("tfx_tips."):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
    return {name for name in names if not name.startswith("_")} - {
        "explain_missing_tensorflow",
        "lazy_names",
    }


@pytest.mark.parametrize("name", PUBLIC_PACKAGES)
def test_all_is_exactly_what_a_package_gives(name):
    package = importlib.import_module(f"tfx_tips.{name}")
    declared = package.__all__

    assert set(declared) == names_given_by(Path(package.__file__).read_text())
    assert len(set(declared)) == len(declared)


@pytest.mark.parametrize("name", PUBLIC_PACKAGES)
def test_every_public_name_can_be_imported_and_says_what_it_is(name):
    package = importlib.import_module(f"tfx_tips.{name}")

    for public in package.__all__:
        value = getattr(package, public)
        assert not public.startswith("_")
        assert value.__doc__, public
        assert value.__module__.startswith("tfx_tips."), public


@pytest.mark.parametrize("name", PUBLIC_PACKAGES)
def test_completion_shows_the_public_names_before_their_modules_are_imported(name):
    script = f"import tfx_tips.{name} as package; print(sorted(package.__all__) == dir(package))"
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert finished.stdout == "True\n"
