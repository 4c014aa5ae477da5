"""A table as a CSV file that any spreadsheet opens and that several processes may change.

How a file is written, and why:

- UTF-8. A file with anything but ASCII begins with a byte order mark, without which Excel
  takes it for the system's code page; a plain ASCII file means the same to everyone and
  has none. Read it in Python with `encoding="utf-8-sig"`.
- Lines end with CR LF, as RFC 4180 says and spreadsheets write. Python 3.11's `csv` quotes a
  carriage return inside a cell only where the line's end has one, too.
- A text that a spreadsheet would run as a formula gets an apostrophe in front, which
  reading takes away again. Numbers, negative ones among them, stay numbers.
- None is an empty cell.

A change reads, changes and replaces the whole file, so it belongs inside `locked`.
Reading needs no lock.
"""

import contextlib
import csv
import io
import itertools
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from tfx_tips._core import files

LOCK_NAME = ".experiments.lock"
LOCK_TIMEOUT_S = 60.0
# A change takes some milliseconds.
_LOOK_EVERY_S = 0.01

# The most characters that Excel shows in a cell; Python's `csv` reads up to 131,072.
MAX_CELL_CHARACTERS = 32_767

# What starts a formula in some spreadsheet (OWASP, "CSV Injection"), full-width forms included,
# also behind white space, which some of them skip. Apostrophes in front count as escapes.
_FORMULA = re.compile(r"'*([\s\0]*[=+\-@＝＋－＠]|[\t\r\n])")  # noqa: RUF001 - they are meant
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@contextlib.contextmanager
def locked(directory: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Holds the lock of a directory's tables against other threads and processes.

    The operating system lets the lock go when its process dies, however it dies.

    Args:
        directory: Where the tables stand; created if missing.
        timeout_s: How long to wait for whoever holds the lock.

    Raises:
        TimeoutError: If the lock could not be had in time.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK_NAME)
    try:
        lock.acquire(timeout=timeout_s, poll_interval=_LOOK_EVERY_S)
    except Timeout as error:
        raise TimeoutError(
            f"The tables in {directory} must be free within {timeout_s:g} s, but another process "
            f"holds {LOCK_NAME}. Look for a stopped process that uses this directory."
        ) from error
    try:
        yield
    finally:
        lock.release()


class Table:
    """Rows of text cells under named columns, kept as they stand in the file.

    Cells and columns that nobody here knows survive: `put` changes only the cells it is given.

    Args:
        rows: The header and the rows, as `csv.reader` gives them.
    """

    def __init__(self, rows: Iterable[Sequence[str]] = ()) -> None:
        filled = [row for row in rows if row]
        # Someone may have written beside the table: such a column has no name.
        width = max(map(len, filled), default=0)
        padded = [[*row, *itertools.repeat("", width - len(row))] for row in filled]
        self._columns = padded[0] if padded else []
        self._rows = padded[1:]

    @classmethod
    def read(cls, path: Path, *, key: Sequence[str], columns: Sequence[str]) -> "Table":
        """Reads a file; a missing or empty one is a table without rows.

        Args:
            path: The file.
            key: Columns that it must have.
            columns: The columns of a table that is not there yet.

        Raises:
            ValueError: If the file is not such a table.
        """
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                table = cls(csv.reader(file, strict=True))
        except FileNotFoundError:
            table = cls()
        except (UnicodeDecodeError, csv.Error) as error:
            raise _not_a_table(path, str(error)) from error
        if not table._columns:
            return cls([columns])
        if not set(key) <= set(table._columns):
            raise _not_a_table(path, f"its columns are {table._columns}")
        return table

    def write(self, path: Path) -> None:
        """Replaces the file in one step.

        Raises:
            NotEnoughSpaceError: If the file system is full; the old file stands untouched.
        """
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator="\r\n")
        writer.writerows([self._columns, *self._rows])
        text = buffer.getvalue()
        files.write_text(path, text if text.isascii() else "\ufeff" + text)

    def records(self) -> list[dict[str, str]]:
        """Returns the rows as texts by column, unescaped, without the empty cells."""
        return [
            {name: unescape(cell) for name, cell in zip(self._columns, row, strict=True) if cell}
            for row in self._rows
        ]

    def put(self, key: Sequence[str], cells: Mapping[str, object]) -> None:
        """Changes cells of the row that agrees in the columns `key`, or adds such a row.

        Args:
            key: Columns that tell the rows apart; all of them in `cells`.
            cells: The new values by column; columns that the table lacks are added at its end.
        """
        texts = {name: escape(cell_text(value)) for name, value in cells.items()}
        for name in texts:
            if name not in self._columns:
                self._columns.append(name)
                for row in self._rows:
                    row.append("")
        places = {name: self._columns.index(name) for name in texts}
        for row in self._rows:
            if all(unescape(row[places[name]]) == unescape(texts[name]) for name in key):
                break
        else:
            row = [""] * len(self._columns)
            self._rows.append(row)
        for name, text in texts.items():
            row[places[name]] = text


def cell_text(value: object) -> str:
    """Returns how a value is written: numbers so that they read back exactly, None as nothing.

    Lone surrogates, which UTF-8 cannot hold (undecodable file names have them), are spelled out.
    """
    if value is None:
        return ""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        # NumPy's numbers, whose own `repr` names their type, are such numbers, too.
        return str(int(value)) if isinstance(value, numbers.Integral) else repr(float(value))
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def require_cell(name: str, value: object) -> None:
    """Raises unless a value can stand in a cell.

    Args:
        name: The argument's name.
        value: What was passed.

    Raises:
        ValueError: If it is a mapping, or too long.
    """
    if isinstance(value, Mapping):
        raise ValueError(
            f"`{name}` must fit into one cell of a table. Received: {name}={value!r}. "
            "Pass what is inside it one by one."
        )
    characters = len(cell_text(value))
    if characters >= MAX_CELL_CHARACTERS:
        raise ValueError(
            f"`{name}` must be shorter than {MAX_CELL_CHARACTERS:,} characters to fit into a "
            f"cell of a spreadsheet. Received: a text of {characters:,} characters. Put it into "
            "a file and pass the file's path."
        )


def escape(text: str) -> str:
    """Puts an apostrophe before what a spreadsheet would run as a formula."""
    if _FORMULA.match(text) and not _NUMBER.fullmatch(text):
        return "'" + text
    return text


def unescape(text: str) -> str:
    """Undoes `escape`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _not_a_table(path: Path, found: str) -> ValueError:
    return ValueError(
        f"{path} must be a comma-separated UTF-8 table as ExperimentTracker writes it. "
        f"Received: {found}. If a spreadsheet saved it, save it again as 'CSV UTF-8 (comma "
        "delimited)', or move it away to start a new one."
    )
