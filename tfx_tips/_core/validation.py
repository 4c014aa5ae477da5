"""Checks of arguments whose error states the expectation, what was received, the remedy."""


def require_positive_int(name: str, value: object, remedy: str, *, minimum: int = 1) -> None:
    """Raises unless `value` is an integer of at least `minimum`.

    Args:
        name: The argument's name.
        value: What was passed.
        remedy: One sentence that says what to pass.
        minimum: The smallest value that is accepted.

    Raises:
        ValueError: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(
            f"`{name}` must be an integer of at least {minimum}. "
            f"Received: {name}={value!r}. {remedy}"
        )


def require_one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raises unless `value` is one of `allowed`.

    Raises:
        ValueError: If it is not.
    """
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"`{name}` must be one of {choices}. Received: {name}={value!r}.")
