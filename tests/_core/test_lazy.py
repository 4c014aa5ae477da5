"""Names of a package that are imported when first used."""

import sys
import textwrap

import pytest


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on the path whose name `Thing` stands in a module that notes its import."""
    folder = tmp_path / "lazy_package_for_test"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        textwrap.dedent("""
        from tfx_tips._core.lazy import lazy_names

        imported = []
        __getattr__ = lazy_names(__name__, {"Thing": "home", "Missing": "home", "Tensor": "needs"})
        """)
    )
    (folder / "home.py").write_text(
        "import lazy_package_for_test as package\npackage.imported.append(__name__)\nThing = 7\n"
    )
    (folder / "needs.py").write_text("import tensorflow_that_is_absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    import lazy_package_for_test

    yield lazy_package_for_test
    for name in [name for name in sys.modules if name.startswith("lazy_package_for_test")]:
        del sys.modules[name]


def test_module_is_imported_when_its_name_is_asked_for_and_not_before(package):
    assert package.imported == []

    assert package.Thing == 7
    assert package.imported == ["lazy_package_for_test.home"]


def test_from_import_finds_the_name(package):
    from lazy_package_for_test import Thing

    assert Thing == 7


def test_unknown_name_is_an_attribute_error_that_names_package_and_name(package):
    with pytest.raises(AttributeError, match="'lazy_package_for_test' has no attribute 'Nothing'"):
        _ = package.Nothing


def test_name_that_its_module_lacks_is_an_error(package):
    with pytest.raises(AttributeError, match="Missing"):
        _ = package.Missing


def test_missing_package_other_than_tensorflow_is_reported_as_it_is(package):
    with pytest.raises(ModuleNotFoundError, match="tensorflow_that_is_absent"):
        _ = package.Tensor
