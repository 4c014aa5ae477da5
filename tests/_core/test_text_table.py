import pytest

from tfx_tips._core.text_table import format_table


def test_aligns_text_left_and_numbers_right():
    table = format_table(
        ["name", "steps", "val_loss"], [["short", 5, 0.25], ["rather long", 12000, 0.123456789]]
    )
    assert table == (
        "name         steps  val_loss\n"
        "-----------  -----  --------\n"
        "short            5      0.25\n"
        "rather long  12000  0.123457"
    )


def test_shows_none_as_an_empty_cell_without_trailing_spaces():
    assert format_table(["a", "b"], [[1, None], [None, "x"]]).splitlines() == [
        "a  b",
        "-  -",
        "1",
        "   x",
    ]


def test_header_stands_right_only_over_a_column_of_numbers():
    lines = format_table(["n", "mixed"], [[1000, 7], [1, "unknown"]]).splitlines()
    assert lines == ["   n  mixed", "----  -------", "1000        7", "   1  unknown"]


def test_table_without_rows_is_its_headers():
    assert format_table(["step", "path"], []) == "step  path\n----  ----"


def test_shows_special_numbers_and_booleans():
    assert format_table(["x"], [[float("nan")], [float("-inf")], [1e-9], [True]]).splitlines() == [
        "x",
        "-----",
        "  nan",
        " -inf",
        "1e-09",
        "True",
    ]


def test_keeps_a_row_on_one_line_and_disarms_control_characters():
    text = "first\nsecond\t third\x1b[31m\x07\u202e"
    lines = format_table(["t"], [[text]]).splitlines()
    assert len(lines) == 3
    assert lines[2] == r"first second third\x1b[31m\x07\u202e"


def test_wide_and_combining_characters_keep_columns_aligned():
    lines = format_table(["name", "n"], [["試験", 1], ["e\u0301te\u0301", 2], ["abcd", 3]])
    assert lines.splitlines() == ["name  n", "----  -", "試験  1", "e\u0301te\u0301   2", "abcd  3"]


def test_row_of_another_length_is_an_error_that_shows_it():
    with pytest.raises(ValueError, match=r"2 headers.*row=\['only'\]"):
        format_table(["a", "b"], [["only"]])
