"""An aligned table of plain text for a terminal."""

import unicodedata
from collections.abc import Sequence

_GAP = "  "


def format_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lays rows out in columns, under their headers and a line of dashes.

    Numbers stand on the right of their column, floats with six significant digits; text
    stands on the left; None is an empty cell. Text stays on one line: each run of
    white space is one space, and characters that would steer the terminal are shown escaped.
    Wide (East Asian) characters count as two columns.

    Args:
        headers: One for each column.
        rows: Each with one cell for each column.

    Returns:
        The lines, without trailing spaces and without a newline at the end.

    Raises:
        ValueError: If a row has another number of cells than there are headers.
    """
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(
                f"Each row must have one cell for each of the {len(headers)} headers. "
                f"Received: row={list(row)!r}. Pass None for an empty cell."
            )
    head = [_cell_text(header) for header in headers]
    body = [[_cell_text(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(head, *body, strict=True)]
    numeric = [_holds_numbers([row[index] for row in rows]) for index in range(len(headers))]
    lines = [
        _line(head, widths, numeric),
        _line(["-" * width for width in widths], widths, numeric),
        *(
            _line(texts, widths, [_is_number(cell) for cell in row])
            for texts, row in zip(body, rows, strict=True)
        ),
    ]
    return "\n".join(lines)


def visible(text: str) -> str:
    """Returns a text with the characters escaped that would steer the terminal.

    These are control characters, format characters (those that turn the direction of writing
    among them) and lone surrogates.
    """
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in ("Cc", "Cf", "Cs")
        else character
        for character in text
    )


def _is_number(cell: object) -> bool:
    return isinstance(cell, (int, float)) and not isinstance(cell, bool)


def _holds_numbers(cells: Sequence[object]) -> bool:
    present = [cell for cell in cells if cell is not None]
    return bool(present) and all(map(_is_number, present))


def _cell_text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return format(cell, ".6g")
    return visible(" ".join(str(cell).split()))


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _line(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = []
    for text, width, to_right in zip(texts, widths, right, strict=True):
        padding = " " * (width - _width(text))
        cells.append(padding + text if to_right else text + padding)
    return _GAP.join(cells).rstrip()
