"""What the repository promises about itself: metadata, extras, layout, README."""

import ast
import configparser
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tfx_tips"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Each brings a TensorFlow of its own, or holds back what others need.
NOT_TO_BE_COMBINED = {"cpu", "tpu", "beam", "all"}


def requirements_of(extra):
    """Returns an extra's requirements, with those of the extras it names, by their names."""
    found = {}
    for text in EXTRAS[extra]:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == "tfx-tips":
            for other in requirement.extras:
                found |= requirements_of(other)
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


def base_requirements():
    return {
        canonicalize_name(requirement.name): requirement
        for requirement in map(Requirement, PROJECT["dependencies"])
    }


def all_requirements():
    found = base_requirements()
    for extra in EXTRAS:
        found |= requirements_of(extra)
    return found


def lower_bound(requirement):
    (bound,) = [part.version for part in requirement.specifier if part.operator == ">="]
    return Version(bound)


def repository_files():
    """Yields what is kept in the repository: no environments, caches or built files."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") for part in parts) and parts[0] != ".ci"
        made = any(part in ("build", "dist", "__pycache__") for part in parts)
        if path.is_file() and not hidden and not made and ".egg-info" not in str(path):
            yield path


def modules():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "__pycache__" not in path.parts]


def files_of_tests():
    return sorted((ROOT / "tests").rglob("*.py"))


def imported_packages(path):
    """Returns the names of the packages outside the standard library that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"tfx_tips"}


def distributions_of(packages):
    """Returns the distributions that hold the packages; TensorFlow's builds count as one.

    What no distribution holds is a module that a test makes for itself.
    """
    holders = importlib.metadata.packages_distributions()
    names = {canonicalize_name(name) for package in packages for name in holders.get(package, ())}
    return {"tensorflow" if name == "tensorflow-cpu" else name for name in names}


def test_no_tool_has_settings_in_both_files():
    in_toml = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"])
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    sections = [section.removeprefix("tool:") for section in parser.sections()]
    in_cfg = {re.split(r"[:-]", section)[0] for section in sections}

    assert {"mypy", "coverage", "importlinter"} <= in_cfg
    assert {"ruff", "pytest", "setuptools"} <= in_toml
    assert in_toml & in_cfg == set()


@pytest.mark.parametrize(
    "name",
    [
        "pytest.ini",
        ".pytest.ini",
        "tox.ini",
        "mypy.ini",
        ".mypy.ini",
        "ruff.toml",
        ".ruff.toml",
        ".importlinter",
        ".coveragerc",
    ],
)
def test_no_third_file_overrides_the_settings(name):
    assert not (ROOT / name).exists()


def test_every_requirement_has_a_lower_bound_and_it_is_the_one_that_is_tested():
    lines = (ROOT / ".ci" / "lowest-constraints.txt").read_text().splitlines()
    tested = {}
    for line in lines:
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            tested[canonicalize_name(requirement.name)] = Version(pin.version)

    declared = {name: lower_bound(each) for name, each in all_requirements().items()}

    assert tested == declared


def test_extra_all_holds_what_works_together_and_nothing_that_does_not():
    brought = set(requirements_of("all")) | set(base_requirements())
    rest = [set(requirements_of(extra)) for extra in EXTRAS if extra not in NOT_TO_BE_COMBINED]

    named = "tensorflow keras tensorflow-datasets tensorboard-plugin-profile numpy pytest"
    assert set(named.split()) <= brought
    assert set().union(*rest) <= brought
    assert brought.isdisjoint({"tensorflow-cpu", "tensorflow-tpu", "apache-beam"})


def test_package_imports_only_what_it_declares():
    imported = set().union(*(imported_packages(path) for path in modules()))
    users = [extra for extra in EXTRAS if extra not in ("test", "dev", "all")]
    declared = set(base_requirements()).union(*(requirements_of(extra) for extra in users))

    assert distributions_of(imported) <= declared


def test_every_hard_requirement_is_really_imported():
    imported = set().union(*(imported_packages(path) for path in modules()))

    assert set(base_requirements()) <= distributions_of(imported)


def test_tests_import_only_what_their_extra_brings():
    imported = set().union(*(imported_packages(path) for path in files_of_tests()))
    declared = set(base_requirements()) | set(requirements_of("test")) | {"tensorflow"}

    assert distributions_of(imported) <= declared


def test_no_test_is_skipped_for_lack_of_a_package_where_the_extra_is_installed():
    text = "\n".join(path.read_text() for path in files_of_tests())
    wanted = set(re.findall(r"importorskip\(\s*['\"]([\w.]+)", text))

    assert {name for name in wanted if importlib.util.find_spec(name) is None} == set()


def test_readme_begins_with_two_commands_of_one_line_that_make_their_own_environment():
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    quick_start, tests = blocks[:2]

    for command in (quick_start, tests):
        assert command.count("\n") == 1
        environment = re.match(r"python3 -m venv (\.venv[\w-]*) && ", command).group(1)
        programs = re.findall(r"(?:&& )(\S+)", command)
        assert all(program.startswith(f"{environment}/bin/") for program in programs)
    assert quick_start.endswith("tfx-tips quickstart\n")
    assert " -m pytest " in tests


def test_ci_runs_the_readme_s_second_command_on_what_it_extracts(tmp_path):
    script = (ROOT / ".ci" / "run").read_text()
    extraction = re.search(r"^second_sh_block=.*?README\.md\)$", script, re.M | re.S).group()
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)

    extracted = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'{extraction}\nprintf "%s" "$second_sh_block"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert extracted.stdout == blocks[1].rstrip("\n")


@pytest.mark.parametrize("name", ["run", "check", "lowest"])
def test_ci_scripts_stop_at_the_first_failure(name):
    lines = (ROOT / ".ci" / name).read_text().splitlines()

    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines


@pytest.mark.parametrize("name", ["run", "lowest"])
def test_ci_scripts_leave_the_null_device_alone(name):
    """As root, uv replaces whatever stands under the name of its output file."""
    assert "--output-file" not in (ROOT / ".ci" / name).read_text().replace("`--output-file", "")


def test_wheel_holds_the_types_marker_the_command_and_every_module(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "tfx_tips", ignore=ignored)
    build = "from setuptools import build_meta; build_meta.build_wheel('wheels')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)

    (wheel,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        commands = archive.read(entry_points).decode()

    expected = {str(path.relative_to(ROOT)) for path in modules()} | {"tfx_tips/py.typed"}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert "tfx-tips = tfx_tips.cli.main:main" in commands
    assert any(name.endswith("LICENSE") for name in names)


def test_every_module_has_a_test_of_its_own_name():
    without_logic = {"__init__.py", "__main__.py", "_version.py"}
    missing = []
    for path in modules():
        place = path.relative_to(PACKAGE)
        if path.name not in without_logic:
            test = ROOT / "tests" / place.with_name(f"test_{path.name}")
            if not test.exists():
                missing.append(str(test.relative_to(ROOT)))

    assert missing == []


def test_every_test_file_has_a_module_of_its_own_name():
    strays = []
    for folder in (path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()):
        for test in (ROOT / "tests" / folder.name).glob("test_*.py"):
            if not (folder / test.name.removeprefix("test_")).exists():
                strays.append(str(test.relative_to(ROOT)))

    assert strays == []


def test_map_in_the_architecture_page_is_the_tree():
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = re.search(r"^```\n(tfx_tips/\n.*?)^```$", page, re.M | re.S).group(1)
    drawn, folders = set(), []
    for line in filter(None, tree.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        folders[depth:] = [name.rstrip("/")]
        if name.endswith(".py"):
            drawn.add("/".join(folders))

    unnamed = {"__init__.py", "__main__.py", "_version.py"}
    there = {str(path.relative_to(ROOT)) for path in modules() if path.name not in unnamed}
    assert drawn == there


def test_nothing_names_the_machine_it_was_written_on():
    private = re.compile(r"(?<![\w.*])/(?:work|root)\b|/tmp/dev|\.library|pypi\.org|pythonhosted")
    found = {}
    for path in repository_files():
        try:
            match = private.search(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        if match and path != Path(__file__):
            found[str(path.relative_to(ROOT))] = match.group()

    assert found == {}
