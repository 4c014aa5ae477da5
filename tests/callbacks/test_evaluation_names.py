import keras
import numpy as np
import pytest

from tfx_tips.callbacks.evaluation_names import named_sets, names_taken, require_first_place

ROWS = np.ones((3, 2))


def test_a_dictionary_names_whole_sets_and_anything_else_gets_the_name():
    data = (ROWS, ROWS)
    assert named_sets(data, "val")["val"] is data
    assert list(named_sets({"clean": data, "noisy": data}, "val")) == ["clean", "noisy"]


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_string_that_is_not_empty(name):
    with pytest.raises(ValueError, match=f"Received: name={name!r}"):
        named_sets((ROWS, ROWS), name)


@pytest.mark.parametrize("data", [{}, {"x": ROWS}, {1: (ROWS, ROWS)}])
def test_a_dictionary_of_single_arrays_is_refused(data):
    with pytest.raises(ValueError, match=r"(?s)whole sets by name.*\(inputs, targets\)"):
        named_sets(data, "val")


def test_the_error_for_names_in_use_says_which_and_what_to_do():
    assert "['val_loss'] in both. Pass another `name`" in str(names_taken(["val_loss"]))


class Listing:
    """A run that lists callbacks, and an evaluation that reports one metric."""

    metric_names = ("val_loss",)

    def __init__(self, *before):
        self.before = before

    def callbacks(self):
        return (*self.before, self, keras.callbacks.EarlyStopping("val_loss"))


def test_only_what_monitors_its_metrics_and_does_not_subscribe_must_come_later():
    subscriber = keras.callbacks.EarlyStopping("val_loss")
    fine = Listing(keras.callbacks.EarlyStopping("loss"), subscriber, keras.callbacks.Callback())
    subscriber.evaluation = fine
    require_first_place(fine, fine)
    wrong = Listing(keras.callbacks.ReduceLROnPlateau("val_loss"))
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau monitors 'val_loss'"):
        require_first_place(wrong, wrong)
