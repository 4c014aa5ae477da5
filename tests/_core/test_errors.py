"""The package's exceptions can be caught by what they are."""

import errno

import pytest

from tfx_tips._core import errors


@pytest.mark.parametrize(
    ("error", "caught_as"),
    [
        (errors.CheckpointError, [errors.TfxTipsError]),
        (errors.NoFiniteMetricError, [errors.CheckpointError, errors.TfxTipsError, ValueError]),
        (errors.DamagedCheckpointError, [errors.CheckpointError, errors.TfxTipsError]),
        (errors.NotEnoughSpaceError, [errors.TfxTipsError, OSError]),
    ],
)
def test_each_error_is_caught_by_its_parents(error, caught_as):
    for parent in caught_as:
        with pytest.raises(parent):
            raise error("what happened")


def test_every_own_exception_descends_from_the_base_and_stands_in_the_tree():
    own = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }

    assert all(issubclass(value, errors.TfxTipsError) for value in own.values())
    assert all(name in errors.__doc__ for name in own)
    assert all(value.__doc__ for value in own.values())


def test_lack_of_space_carries_the_system_s_number_and_the_message():
    error = errors.NotEnoughSpaceError(errno.ENOSPC, "12 bytes are needed")

    assert error.errno == errno.ENOSPC
    assert "12 bytes are needed" in str(error)
