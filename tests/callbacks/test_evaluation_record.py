import csv

import numpy as np
import pytest

from tfx_tips.callbacks.evaluation_record import EvaluationRecord, write_csv


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_numbers_are_written_with_all_their_digits(tmp_path):
    value = 0.1 + 0.2
    write_csv(tmp_path / "a.csv", [EvaluationRecord(7, 1 / 3, {"val_loss": value})])
    header, row = rows_of(tmp_path / "a.csv")
    assert header == ["step", "seconds", "val_loss"]
    assert (int(row[0]), float(row[1]), float(row[2])) == (7, 1 / 3, value)


def test_elements_of_an_array_get_a_column_each_and_absent_values_are_empty(tmp_path):
    records = [
        EvaluationRecord(1, 0.5, {"val_f1": np.array([0.25, 0.5])}),
        EvaluationRecord(2, 0.5, {"val_m": np.array([[1.0], [2.0]]), "val_loss": float("nan")}),
    ]
    write_csv(tmp_path / "a.csv", records)
    assert rows_of(tmp_path / "a.csv") == [
        ["step", "seconds", "val_f1[0]", "val_f1[1]", "val_m[0,0]", "val_m[1,0]", "val_loss"],
        ["1", "0.5", "0.25", "0.5", "", "", ""],
        ["2", "0.5", "", "", "1.0", "2.0", "nan"],
    ]


def test_no_records_give_the_header_alone(tmp_path):
    write_csv(str(tmp_path / "a.csv"), [])
    assert rows_of(tmp_path / "a.csv") == [["step", "seconds"]]


def test_scalars_leave_arrays_out():
    record = EvaluationRecord(1, 0.5, {"val_loss": 2.0, "val_f1": np.array([0.5])})
    assert record.scalars == {"val_loss": 2.0}


def test_a_record_cannot_be_changed():
    with pytest.raises(AttributeError):
        EvaluationRecord(1, 0.5, {}).step = 2
