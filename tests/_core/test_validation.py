"""Checks of arguments: what passes, and what the error says."""

import pytest

from tfx_tips._core.validation import require_one_of, require_positive_int


@pytest.mark.parametrize(("value", "minimum"), [(1, 1), (10**30, 1), (0, 0), (7, 7)])
def test_integer_of_at_least_the_minimum_passes(value, minimum):
    assert require_positive_int("keep", value, "", minimum=minimum) is None


@pytest.mark.parametrize(
    ("value", "minimum"), [(0, 1), (-1, 0), (True, 1), (False, 0), (1.0, 1), ("3", 1), (None, 1)]
)
def test_anything_else_is_refused_with_expectation_value_and_remedy(value, minimum):
    with pytest.raises(ValueError, match="`keep` must be") as caught:
        require_positive_int("keep", value, "Pass `keep=1`.", minimum=minimum)

    assert str(caught.value) == (
        f"`keep` must be an integer of at least {minimum}. Received: keep={value!r}. Pass `keep=1`."
    )


def test_allowed_value_passes():
    assert require_one_of("action", "warn", ("warn", "stop")) is None


@pytest.mark.parametrize("value", ["Warn", "", None, 1, ["warn"], {"warn": 1}])
def test_other_value_is_refused_with_the_choices_and_the_value(value):
    with pytest.raises(ValueError, match="`action` must be one of") as caught:
        require_one_of("action", value, ("warn", "stop"))

    assert str(caught.value) == (
        f"`action` must be one of 'warn', 'stop'. Received: action={value!r}."
    )
