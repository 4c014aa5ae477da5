import csv
import random
import threading

import numpy as np
import pytest

from tfx_tips.callbacks.experiment_table import (
    MAX_CELL_CHARACTERS,
    Table,
    cell_text,
    escape,
    locked,
    require_cell,
    unescape,
)

KEY = ("study", "trial")
COLUMNS = ("study", "trial", "notes")
SIGNS = tuple("=+-@＝＋－＠")  # noqa: RUF001 - spreadsheets take full-width ones, too

NASTY = [
    "=1+1",
    "+1 better",
    "-5 %",
    "@SUM(A1)",
    "\ttab",
    "\rreturn",
    "\nnewline",
    "  =indented",
    "'quoted'",
    "'=quoted formula",
    "''=twice",
    "'",
    "''",
    'say "hi", twice',
    'ends with "',
    '"',
    "a,b;c\td",
    "two\nlines",
    "two\r\nlines",
    "lone\rreturn",
    " spaces ",
    "naïve 試験 🎉",
    "\ufeffmark",
    "nul\0nul",
    "\u2028separator",
    "－5",  # noqa: RUF001
    "-inf",
    "- item",
    "+",
    "0",
    "007",
    "nan",
]


def spreadsheet(path):
    """What a program sees that knows only CSV: a list of rows."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.reader(file))


def read(path):
    return Table.read(path, key=KEY, columns=COLUMNS)


def put(path, **cells):
    table = read(path)
    table.put(KEY, cells)
    table.write(path)


def random_text(generator):
    alphabet = [*"=+-@'\"\t\r\n ,;0a1.e\0é試", "\ufeff"]
    return "".join(generator.choices(alphabet, k=generator.randint(1, 7)))


@pytest.mark.parametrize("text", NASTY)
def test_reads_back_exactly_what_was_written(tmp_path, text):
    path = tmp_path / "t.csv"
    put(path, study=text, trial=1, notes=text)
    put(path, study="other", trial=1, notes=None)  # reads and writes the first row again
    assert read(path).records() == [
        {"study": text, "trial": "1", "notes": text},
        {"study": "other", "trial": "1"},
    ]


def test_reads_back_random_text_exactly(tmp_path):
    generator = random.Random(0)
    texts = [random_text(generator) for _ in range(500)]
    table = Table([COLUMNS])
    for number, text in enumerate(texts):
        table.put(KEY, {"study": "s", "trial": number, "notes": text})
    table.write(tmp_path / "t.csv")
    assert [row["notes"] for row in read(tmp_path / "t.csv").records()] == texts


def test_no_cell_begins_like_a_formula_except_numbers(tmp_path):
    generator = random.Random(1)
    texts = NASTY + [random_text(generator) for _ in range(500)]
    table = Table([COLUMNS])
    for number, text in enumerate(texts):
        table.put(KEY, {"study": "s", "trial": number, "notes": text})
    table.write(tmp_path / "t.csv")
    for row in spreadsheet(tmp_path / "t.csv"):
        for cell in row:
            if cell.lstrip().startswith(SIGNS) or cell.startswith(("\t", "\r", "\n")):
                float(cell)


@pytest.mark.parametrize("number", ["-0.5", "+1.5e-7", "-12", "-.5", "-1.", "3"])
def test_numbers_stay_numbers(number):
    assert escape(number) == number
    assert unescape(number) == number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.1, "0.1"),
        (-1e-300, "-1e-300"),
        (7, "7"),
        (True, "True"),
        (np.float64(0.5), "0.5"),
        (np.float32(0.5), "0.5"),
        (np.int64(-3), "-3"),
        (np.bool_(False), "False"),
        (float("nan"), "nan"),
        ((3, 3), "(3, 3)"),
        ("caf\udce9", r"caf\udce9"),
    ],
)
def test_writes_values_as_text(value, text):
    assert cell_text(value) == text


def test_floats_keep_all_their_digits():
    generator = random.Random(2)
    for _ in range(1000):
        value = generator.uniform(-1, 1) * 10 ** generator.randint(-200, 200)
        assert float(cell_text(value)) == value


def test_a_table_without_rows_has_its_columns(tmp_path):
    read(tmp_path / "missing.csv").write(tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_bytes() == b"study,trial,notes\r\n"
    (tmp_path / "empty.csv").touch()
    assert read(tmp_path / "empty.csv").records() == []


def test_ascii_has_no_byte_order_mark_and_other_text_has_one(tmp_path):
    path = tmp_path / "t.csv"
    put(path, study="plain", trial=1)
    assert path.read_bytes() == b"study,trial,notes\r\nplain,1,\r\n"
    put(path, study="plain", trial=1, notes="é")
    assert path.read_bytes() == "\ufeffstudy,trial,notes\r\nplain,1,é\r\n".encode()
    put(path, study="plain", trial=1, notes="e")
    assert path.read_bytes() == b"study,trial,notes\r\nplain,1,e\r\n"


def test_an_absent_value_is_an_empty_cell(tmp_path):
    put(tmp_path / "t.csv", study="s", trial=1, notes=None)
    assert spreadsheet(tmp_path / "t.csv") == [["study", "trial", "notes"], ["s", "1", ""]]
    assert read(tmp_path / "t.csv").records() == [{"study": "s", "trial": "1"}]


def test_put_changes_the_row_with_the_same_key_and_no_other(tmp_path):
    path = tmp_path / "t.csv"
    for study, trial in (("a", 1), ("a", 2), ("b", 1)):
        put(path, study=study, trial=trial, notes="old")
    put(path, study="a", trial=2, notes="new")
    assert [row["notes"] for row in read(path).records()] == ["old", "new", "old"]


def test_old_rows_survive_new_columns(tmp_path):
    path = tmp_path / "t.csv"
    put(path, study="a", trial=1, notes="old")
    put(path, study="a", trial=2, extra=0.5)
    assert spreadsheet(path) == [
        ["study", "trial", "notes", "extra"],
        ["a", "1", "old", ""],
        ["a", "2", "", "0.5"],
    ]


def test_columns_cells_and_rows_of_others_survive_as_they_stand(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "rating,trial,study\n-5 %,1,a\n=B2*2,2,a,,beside\n,,just a remark\n\n", encoding="utf-8"
    )
    put(path, study="a", trial=1, notes="n")
    assert spreadsheet(path) == [
        ["rating", "trial", "study", "", "", "notes"],
        ["-5 %", "1", "a", "", "", "n"],
        ["=B2*2", "2", "a", "", "beside", ""],
        ["", "", "just a remark", "", "", ""],
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_reads_what_spreadsheets_save(tmp_path, newline, encoding):
    text = newline.join(['"study","trial","notes"', '"é","1","x ""y"""', ""])
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    assert read(tmp_path / "t.csv").records() == [{"study": "é", "trial": "1", "notes": 'x "y"'}]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"study;trial;notes\r\na;1;x\r\n", "study;trial;notes"),
        ("study,trial\r\n\xe9,1\r\n".encode("cp1252"), "can't decode byte 0xe9"),
        (b'study,trial\r\na,"1\r\n', "unexpected end of data"),
        (b"study,trial\r\na," + b"x" * 200_000, "field larger than field limit"),
    ],
)
def test_refuses_what_is_no_such_table_and_leaves_it_alone(tmp_path, data, found):
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"(?s){path}.*Received: .*{found}.*CSV UTF-8"):
        put(path, study="a", trial=1)
    assert path.read_bytes() == data


def test_refuses_what_does_not_fit_into_a_cell():
    require_cell("notes", "x" * (MAX_CELL_CHARACTERS - 1))
    with pytest.raises(ValueError, match=r"`notes` must be shorter than 32,767.*the file's path"):
        require_cell("notes", "x" * MAX_CELL_CHARACTERS)
    with pytest.raises(ValueError, match=r"parameters\['a'\]={'b': 1}"):
        require_cell("parameters['a']", {"b": 1})


def test_the_longest_cell_can_be_read_back(tmp_path):
    text = "=" + "é" * (MAX_CELL_CHARACTERS - 2)
    put(tmp_path / "t.csv", study="a", trial=1, notes=text)
    assert read(tmp_path / "t.csv").records()[0]["notes"] == text


def test_the_lock_excludes_other_threads_and_says_who_may_hold_it(tmp_path):
    directory = tmp_path / "new" / "tables"
    errors = []

    def try_to_lock():
        try:
            with locked(directory, timeout_s=0.01):
                errors.append(None)
        except TimeoutError as error:
            errors.append(str(error))

    with locked(directory):
        thread = threading.Thread(target=try_to_lock)
        thread.start()
        thread.join()
    try_to_lock()
    assert str(directory) in errors[0]
    assert "0.01 s" in errors[0]
    assert errors[1] is None
