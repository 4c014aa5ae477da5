import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks.output_losses import has_output_losses, make_test_function


class OwnMean(keras.Model):
    """Two outputs, and a mean over batches of the user's own."""

    def __init__(self):
        super().__init__()
        self.own = keras.metrics.Mean(name="own")

    def call(self, x):
        return {"a": x, "b": 2 * x}

    def test_step(self, data):
        x, _ = data
        self.own.update_state(keras.ops.mean(x))
        return super().test_step(data)


X = np.array([[1.0], [2.0], [6.0]], "float32")
ZEROS = np.zeros_like(X)


@pytest.mark.parametrize("eager", [False, True])
def test_a_partial_batch_counts_by_its_rows_and_a_users_mean_stays_its_own(eager):
    model = OwnMean()
    model.compile(loss={"a": "mae", "b": "mse"}, run_eagerly=eager)
    dataset = tf.data.Dataset.from_tensor_slices((X, {"a": ZEROS, "b": ZEROS})).batch(2)
    model.evaluate(dataset, verbose=0)
    before = model.test_function
    function = make_test_function(model)
    assert model.test_function is before
    assert "test_step" not in vars(model)
    model.reset_metrics()
    iterator = iter(dataset)
    function(iterator)
    function(iterator)
    values = {name: float(value) for name, value in model.get_metrics_result().items()}
    expected = {"loss": 3 + 4 * 41 / 3, "a_loss": 3.0, "b_loss": 4 * 41 / 3, "own": (1.5 + 6) / 2}
    assert values == pytest.approx(expected, rel=1e-6)


def test_a_model_with_one_output_has_none():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse", metrics=["mae"])
    model.evaluate(X, ZEROS, verbose=0)
    assert not has_output_losses(model)
