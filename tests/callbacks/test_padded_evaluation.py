import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks import StepEvaluation
from tfx_tips.callbacks.evaluation_loop import EvaluationLoop
from tfx_tips.data.evaluation_set import evaluation_set

layers, metrics = keras.layers, keras.metrics


def padded(model, data, batch_size):
    """Evaluates with padding, as StepEvaluation does."""
    loop = EvaluationLoop(model, evaluation_set(data, name="val", batch_size=batch_size, pad=True))
    loop.probe()
    return loop.run()


def compiled(model, loss, **kwargs):
    model.compile("sgd", loss, **kwargs)
    return model


def dense(units, activation=None, *, inputs=(4,), **kwargs):
    return keras.Sequential(
        [layers.Input(inputs), layers.Dense(units, activation=activation, **kwargs)]
    )


def predictions(model, x):
    """The model's own float32 predictions, in one batch, as float64."""
    outputs = model.predict_on_batch(x)
    return keras.tree.map_structure(lambda part: np.asarray(part, "float64"), outputs)


def crossentropy(y, p):
    """Rows' crossentropy of one-hot labels, in float64."""
    return -np.sum(y * np.log(np.clip(p / p.sum(-1, keepdims=True), 1e-7, 1 - 1e-7)), axis=-1)


@pytest.fixture(scope="module")
def regression():
    """A model with a regularizer, two metrics and their weighted twins; data and weights."""
    generator = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    x = generator.normal(size=(1003, 4)).astype("float32")
    kernel = generator.normal(size=(4, 2))
    y = (100 * (x @ kernel + generator.normal(size=(1003, 2)))).astype("float32")
    weights = generator.uniform(size=1003).astype("float32")
    model = compiled(
        dense(2, kernel_regularizer=keras.regularizers.L2(0.3)),
        "mse",
        metrics=["mae", metrics.R2Score()],
        weighted_metrics=[metrics.MeanAbsoluteError(name="weighted_mae")],
    )
    model.layers[0].set_weights([80 * kernel, np.zeros(2)])
    return model, (x, y), weights


def expected_regression(model, x, y, weights):
    p = predictions(model, x)
    kernel = np.asarray(model.trainable_weights[0], "float64")
    regularization = 0.3 * np.sum(kernel**2)
    absolute = np.mean(np.abs(y - p), axis=1)
    return {
        "loss": np.mean(np.mean((y - p) ** 2, axis=1) * weights) + regularization,
        "mae": np.mean(absolute),
        "r2_score": np.mean(1 - np.sum((y - p) ** 2, 0) / np.sum((y - y.mean(0)) ** 2, 0)),
        "weighted_mae": np.sum(absolute * weights) / np.sum(weights),
    }


@pytest.mark.parametrize(
    ("rows", "batch_size"),
    [(1003, 1000), (1003, 64), (9, 8), (3, 8), (16, 8), (5, 1), (7, 3)],
)
def test_loss_and_metrics_are_those_of_the_unpadded_set(regression, rows, batch_size):
    model, (x, y), weights = regression
    x, y, weights = x[:rows], y[:rows], weights[:rows]
    for data in ((x, y), (x, y, weights)):
        values = padded(model, data, batch_size)
        want = expected_regression(model, x, y, weights if len(data) == 3 else np.ones(rows))
        assert values.keys() == want.keys()
        for name in want:
            # The coefficient of determination is 1 minus something: exact on that scale.
            absolute = 1e-6 if name == "r2_score" else 0
            assert values[name] == pytest.approx(want[name], rel=1e-6, abs=absolute), name


def test_a_set_of_one_row_in_a_larger_batch(rng):
    x, y = rng.normal(size=(1, 4)).astype("float32"), rng.normal(size=(1, 2)).astype("float32")
    model = compiled(dense(2), "mse", metrics=["mae"], run_eagerly=True)
    error = y - predictions(model, x)
    assert padded(model, (x, y), 8) == pytest.approx(
        {"loss": np.mean(error**2), "mae": np.mean(np.abs(error))}, rel=1e-6
    )


def segmentation_and_class(**kwargs):
    """Outputs of different ranks: a class for each pixel, one for the image, a series."""
    inputs = layers.Input((5, 6, 2))
    pixels = layers.Conv2D(3, 1, activation="softmax", name="pixels")(inputs)
    pooled = layers.GlobalAveragePooling2D()(inputs)
    label = layers.Dense(1, activation="sigmoid", name="label")(pooled)
    series = layers.Dense(2, name="series")(layers.Reshape((30, 2))(inputs))
    outputs = {"pixels": pixels, "label": label, "series": series}
    if kwargs.pop("as_list", False):
        outputs = list(outputs.values())
    return keras.Model(inputs, outputs)


@pytest.fixture(scope="module")
def images():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(13, 5, 6, 2)).astype("float32")
    pixels = generator.integers(0, 3, (13, 5, 6))
    label = generator.integers(0, 2, (13, 1)).astype("float32")
    series = generator.normal(size=(13, 30, 2)).astype("float32")
    return x, {"pixels": pixels, "label": label, "series": series}


def per_image_error(y_true, y_pred):
    """One value for each example, although the output has three more axes."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=list(range(1, y_pred.ndim)))


@pytest.mark.parametrize(
    ("as_list", "weighting"),
    [(True, "none"), (False, "one"), (False, "each"), (True, "each")],
)
def test_several_outputs_of_different_ranks(images, as_list, weighting):
    x, targets = images
    keras.utils.set_random_seed(1)
    model = segmentation_and_class(as_list=as_list)
    # Losses in another order than the outputs.
    model.compile(
        "sgd",
        loss={
            "series": per_image_error,
            "pixels": "sparse_categorical_crossentropy",
            "label": keras.losses.BinaryCrossentropy(),
        },
        loss_weights={"series": 0.5, "pixels": 2.0, "label": 3.0},
        metrics={"label": [metrics.AUC(name="auc")], "pixels": ["accuracy"], "series": ["mse"]},
        weighted_metrics={"series": [metrics.MeanAbsoluteError(name="weighted_mae")]},
        run_eagerly=as_list,
    )
    rows = np.random.default_rng(2).uniform(size=13).astype("float32")
    weights = {"pixels": rows[:, None, None], "label": rows + 1, "series": rows + 2}
    if weighting == "none":
        weights = {name: np.ones(13) for name in targets}
    elif weighting == "one":
        # One for all: a rank that suits each loss' values.
        model.compile("sgd", loss=per_image_error, metrics=[["mse"]] * 3, run_eagerly=True)
        weights = dict.fromkeys(targets, rows)
        targets = targets | {"pixels": np.eye(3, dtype="float32")[targets["pixels"]]}
    order = list(targets)
    y = [targets[name] for name in order] if as_list else targets
    given = {
        "none": (),
        "one": (rows,),
        "each": ([weights[name] for name in order] if as_list else weights,),
    }[weighting]
    values = padded(model, (x, y, *given), 8)

    p = predictions(model, x)
    p = dict(zip(order, p, strict=True)) if as_list else p
    error = {name: targets[name] - p[name] for name in order if targets[name].ndim == p[name].ndim}
    if weighting == "one":
        want = {
            f"{name}_loss": np.mean(
                np.mean(np.abs(error[name]), tuple(range(1, error[name].ndim))) * rows
            )
            for name in order
        }
        want["loss"] = sum(want.values())
        want |= {f"{name}_mse": np.mean(error[name] ** 2) for name in order}
    else:
        one_hot = np.eye(3)[targets["pixels"]]
        binary = np.concatenate([targets["label"], 1 - targets["label"]], 1)
        both = np.concatenate([p["label"], 1 - p["label"]], 1)
        series = np.mean(np.abs(error["series"]), axis=(1, 2))
        want = {
            "pixels_loss": np.mean(
                crossentropy(one_hot, p["pixels"]) * np.reshape(weights["pixels"], (13, 1, 1))
            ),
            "label_loss": np.mean(crossentropy(binary, both) * weights["label"]),
            "series_loss": np.mean(series * weights["series"]),
            "pixels_accuracy": np.mean(p["pixels"].argmax(-1) == targets["pixels"]),
            "series_mse": np.mean(error["series"] ** 2),
            "series_weighted_mae": np.average(series, weights=weights["series"]),
        }
        want["loss"] = 2 * want["pixels_loss"] + 3 * want["label_loss"] + 0.5 * want["series_loss"]
        auc = metrics.AUC()
        auc.update_state(targets["label"], p["label"])
        want["label_auc"] = float(auc.result())
    assert values.keys() == want.keys()
    for name in want:
        assert values[name] == pytest.approx(want[name], rel=1e-6), name


# Metrics whose value is no mean over rows; the oracle is a fresh metric on all rows at once.
BINARY = [
    metrics.AUC,
    metrics.Precision,
    metrics.Recall,
    metrics.BinaryAccuracy,
    metrics.TruePositives,
    metrics.FalseNegatives,
    lambda: metrics.BinaryIoU(target_class_ids=[0, 1]),
    lambda: metrics.RecallAtPrecision(0.5),
    lambda: metrics.SensitivityAtSpecificity(0.5),
]
CLASSES = [
    metrics.CategoricalAccuracy,
    lambda: metrics.TopKCategoricalAccuracy(2),
    lambda: metrics.OneHotIoU(3, [0, 1]),
    lambda: metrics.OneHotMeanIoU(3),
    lambda: metrics.Precision(class_id=1),
    metrics.KLDivergence,
]
SPARSE = [
    metrics.SparseCategoricalAccuracy,
    lambda: metrics.SparseTopKCategoricalAccuracy(2),
    lambda: metrics.MeanIoU(3, sparse_y_pred=False),
    lambda: metrics.IoU(3, [1], sparse_y_pred=False),
]
VALUES = [
    metrics.RootMeanSquaredError,
    metrics.CosineSimilarity,
    metrics.LogCoshError,
    metrics.MeanAbsolutePercentageError,
]
ROWS_ONLY = {
    "classes": [
        metrics.F1Score,
        lambda: metrics.FBetaScore(average="macro"),
        lambda: metrics.AUC(multi_label=True),
    ],
    "values": [metrics.R2Score],
    "binary": [lambda: metrics.F1Score(threshold=0.5)],
}
KINDS = {
    "binary": (1, "sigmoid", "binary_crossentropy", BINARY),
    "classes": (3, "softmax", "categorical_crossentropy", CLASSES),
    "sparse": (3, "softmax", "sparse_categorical_crossentropy", SPARSE),
    "values": (2, None, "mse", VALUES),
}


def named(make, name):
    metric = make()
    metric.name = name
    return metric


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        *[(kind, inputs) for kind in KINDS for inputs in [(4,), (8, 4)]],
        ("binary", (5, 6, 4)),
        ("sparse", (5, 6, 4)),
    ],
)
def test_metrics_of_any_kind_and_rank_ignore_padded_rows(rng, kind, inputs):
    units, activation, loss, makers = KINDS[kind]
    makers = makers + (ROWS_ONLY.get(kind, []) if len(inputs) == 1 else [])
    x = rng.normal(size=(11, *inputs)).astype("float32")
    if kind == "values":
        y = rng.normal(size=(11, *inputs[:-1], units)).astype("float32")
    else:
        y = rng.integers(0, max(units, 2), (11, *inputs[:-1]))
        y = np.eye(3, dtype="float32")[y] if kind == "classes" else y
        y = y[..., None].astype("float32") if kind == "binary" else y
    model = compiled(
        dense(units, activation, inputs=inputs),
        loss,
        metrics=[named(make, f"plain_{index}") for index, make in enumerate(makers)],
        weighted_metrics=[named(makers[0], "weighted_0"), named(makers[-1], "weighted_1")],
        run_eagerly=True,
    )
    values = padded(model, (x, y), 8)
    output = model.predict_on_batch(x)
    expected = {f"plain_{index}": make for index, make in enumerate(makers)}
    expected |= {"weighted_0": makers[0], "weighted_1": makers[-1]}
    assert values.keys() == {"loss", *expected}
    for name, make in expected.items():
        metric = make()
        metric.update_state(y, output)
        # Cosines and the like may cancel to almost nothing.
        np.testing.assert_allclose(
            values[name], metric.result(), rtol=1e-6, atol=1e-7, err_msg=type(metric).__name__
        )


class Traced(layers.Layer):
    """Notes the shape of its input at each trace."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def call(self, inputs):
        self.shapes.append(tuple(inputs.shape))
        return inputs


def test_one_shape_is_compiled_under_xla(rng):
    traced = Traced()
    model = keras.Sequential([layers.Input((4,)), traced, layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"], jit_compile=True)
    x = rng.normal(size=(19, 4)).astype("float32")
    y = rng.normal(size=(19, 2)).astype("float32")
    evaluation = StepEvaluation(
        (x, y), every_steps=2, batch_size=8, pad_partial_batch=True, at_end=False
    )
    model.fit(x[:16], y[:16], batch_size=4, epochs=2, verbose=0, callbacks=[evaluation])
    evaluated = [shape for shape in traced.shapes if shape[0] not in (4, None)]
    # Twice where Keras makes the metrics, once for all evaluations.
    assert evaluated == [(8, 4)] * 3
    assert len(evaluation.history) == 4
    p = predictions(model, x)
    last = evaluation.history[-1].metrics
    assert last["val_loss"] == pytest.approx(np.mean((y - p) ** 2), rel=1e-6)
    assert last["val_mae"] == pytest.approx(np.mean(np.abs(y - p)), rel=1e-6)
    model.fit(x[:16], y[:16], batch_size=4, epochs=2, verbose=0, callbacks=[evaluation])
    assert traced.shapes.count((8, 4)) == 4


@pytest.mark.parametrize("mode", [{"run_eagerly": True}, {"steps_per_execution": 4}], ids=str)
def test_padding_works_however_steps_run(rng, mode):
    x = rng.normal(size=(19, 4)).astype("float32")
    y = rng.normal(size=(19, 2)).astype("float32")
    model = compiled(dense(2), "mse", **mode)
    evaluation = StepEvaluation((x, y), every_steps=4, batch_size=8, pad_partial_batch=True)
    for _ in range(2):
        model.fit(x[:16], y[:16], batch_size=2, verbose=0, callbacks=[evaluation])
        assert [record.step % 8 for record in evaluation.history] == [4, 0]
        error = np.mean((y - predictions(model, x)) ** 2)
        assert evaluation.history[-1].metrics["val_loss"] == pytest.approx(error, rel=1e-6)


def fit_with_padding(model, x, y, **kwargs):
    evaluation = StepEvaluation(
        (x, y), every_steps=1, batch_size=8, pad_partial_batch=True, **kwargs
    )
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[evaluation])
    return evaluation


class IgnoresWeights(metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(keras.ops.abs(y_true - y_pred))


class CountsAllRows(metrics.Metric):
    """Weighs the values but divides by all rows, as in many a tutorial."""

    def __init__(self, name="counts_all_rows"):
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)
        if sample_weight is not None:
            values = values * keras.ops.cast(sample_weight, values.dtype)
        self.total.assign_add(keras.ops.sum(values))
        self.count.assign_add(keras.ops.cast(keras.ops.shape(y_pred)[0], "float32"))

    def result(self):
        return self.total / self.count


class WeighsElements(metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        values = keras.ops.abs(y_true - y_pred)
        weights = 1.0 if sample_weight is None else sample_weight
        return super().update_state(keras.ops.sum(values * weights))


class MinusBatchMean(layers.Layer):
    def call(self, inputs):
        return inputs - keras.ops.mean(inputs, axis=0, keepdims=True)


class AddsRowLoss(layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.sum(inputs**2))
        return inputs


def wrapped(**methods):
    return type("Custom", (keras.Model,), methods)


def custom_model(**methods):
    inputs = layers.Input((4,))
    return wrapped(**methods)(inputs, layers.Dense(2)(inputs))


def batch_normalized_loss(y_true, y_pred):
    return keras.ops.mean((y_true - y_pred) ** 2)


REFUSED = {
    "sum": (
        lambda: compiled(dense(2), keras.losses.MeanSquaredError(reduction="sum")),
        r"'mean_squared_error'.*reduction='sum'.*not a mean over rows",
    ),
    "mean with sample weight": (
        lambda: compiled(
            dense(2), keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        ),
        "reduction='mean_with_sample_weight'",
    ),
    "a loss that reduces over the batch": (
        lambda: compiled(dense(2), batch_normalized_loss),
        "'loss' depends on rows",
    ),
    "a metric that ignores weights": (
        lambda: compiled(dense(2), "mse", metrics=[IgnoresWeights(name="blind")]),
        "'blind' depends on rows",
    ),
    "a metric that counts all rows": (
        lambda: compiled(dense(2), "mse", metrics=[CountsAllRows()]),
        "'counts_all_rows' depends on rows",
    ),
    "a metric whose weights have another rank": (
        lambda: compiled(dense(2), "mse", metrics=[WeighsElements(name="stiff")]),
        r"'stiff' failed when it was given a weight for each row, of shape \(8,\)",
    ),
    "an activity regularizer": (
        lambda: compiled(dense(2, activity_regularizer="l2"), "mse"),
        "'loss' depends on rows",
    ),
    "add_loss over rows": (
        lambda: compiled(
            keras.Sequential([layers.Input((4,)), AddsRowLoss(), layers.Dense(2)]), "mse"
        ),
        "'loss' depends on rows",
    ),
    "a layer that mixes rows": (
        lambda: compiled(
            keras.Sequential([layers.Input((4,)), MinusBatchMean(), layers.Dense(2)]), "mse"
        ),
        "'loss' depends on rows",
    ),
    "test_step": (
        lambda: compiled(custom_model(test_step=lambda self, data: {"loss": 0.0}), "mse"),
        "own `test_step`.*a Custom that overrides it",
    ),
    "compute_loss": (
        lambda: compiled(
            custom_model(compute_loss=lambda self, **kwargs: keras.ops.mean(kwargs["y_pred"])),
            "mse",
        ),
        "own `compute_loss`",
    ),
    "compute_metrics": (
        lambda: compiled(
            custom_model(
                compute_metrics=lambda self, x, y, y_pred, sample_weight=None: {"loss": 0.0}
            ),
            "mse",
        ),
        "own `compute_metrics`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exact_is_refused_before_the_first_step(rng, case):
    make, message = REFUSED[case]
    model = make()
    x = rng.normal(size=(19, 4)).astype("float32")
    y = rng.normal(size=(19, 2)).astype("float32")
    with pytest.raises(ValueError, match=message) as error:
        fit_with_padding(model, x, y)
    assert int(model.optimizer.iterations) == 0
    assert "Received:" in str(error.value)
    assert "ass `pad_partial_batch=False`" in str(error.value)


def test_masked_outputs_are_refused(rng):
    tokens = rng.integers(0, 5, (19, 6))
    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Embedding(5, 3, mask_zero=True),
            layers.SimpleRNN(2, return_sequences=True),
        ]
    )
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match=r"masked outputs.*Pass `pad_partial_batch=False`"):
        fit_with_padding(model, tokens, rng.normal(size=(19, 6, 2)).astype("float32"))
    assert int(model.optimizer.iterations) == 0


def test_a_metric_that_ignores_weights_is_found_among_equal_rows():
    # Here the content of the rows cannot tell.
    x, y = np.ones((3, 4), "float32"), np.ones((3, 2), "float32")

    class Rows(metrics.Sum):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(keras.ops.ones_like(y_pred[:, 0]))

    model = compiled(dense(2), "mse", metrics=[Rows(name="rows")], run_eagerly=True)
    with pytest.raises(ValueError, match="'rows' depends on rows"):
        fit_with_padding(model, x, y)


def consumed_mask():
    return keras.Sequential(
        [
            layers.Input((6,)),
            layers.Embedding(5, 3, mask_zero=True),
            layers.GRU(2),
            layers.Dense(2, activation="softmax"),
        ]
    )


def normalized():
    return keras.Sequential(
        [
            layers.Input((4,)),
            layers.Dense(3),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(2, activation="softmax"),
        ]
    )


class Subclass(keras.Model):
    """Takes no `training`, declares no inputs, and keeps a metric of its own."""

    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(2, activation="softmax")
        self.seen = metrics.Mean(name="seen")

    def call(self, inputs):
        return self.inner(inputs)


ACCEPTED = {
    "mask that a GRU consumes": (consumed_mask, "sparse_categorical_crossentropy", ["accuracy"]),
    "dropout and batch normalization": (
        normalized,
        keras.losses.SparseCategoricalCrossentropy,
        [metrics.SparseCategoricalAccuracy],
    ),
    "subclass": (Subclass, "sparse_categorical_crossentropy", ["acc"]),
    "function": (
        lambda: dense(2),
        lambda: lambda y, p: (keras.ops.cast(y, "float32") - p[:, 0]) ** 2,
        [lambda: lambda y, p: keras.ops.abs(keras.ops.cast(y, p.dtype) - p[:, 0])],
    ),
    "function of a scalar output": (
        lambda: dense(1),
        lambda: lambda y, p: keras.ops.mean((y - p) ** 2, axis=-1),
        ["mae"],
    ),
    "no metrics": (lambda: dense(1), "mse", None),
}


@pytest.mark.parametrize(
    ("case", "policy"),
    [
        *[(case, "float32") for case in ACCEPTED],
        ("mask that a GRU consumes", "mixed_bfloat16"),
        ("dropout and batch normalization", "mixed_float16"),
        ("function", "mixed_bfloat16"),
        ("function", "mixed_float16"),
    ],
)
def test_fine_models_are_accepted_and_exact(rng, case, policy):
    make, loss, names = ACCEPTED[case]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = make()
    finally:
        keras.config.set_dtype_policy(before)
    x = rng.integers(0, 5, (19, 6)) if make is consumed_mask else rng.normal(size=(19, 4))
    y = rng.integers(0, 2, 19)
    model.compile(
        "sgd",
        loss() if callable(loss) else loss,
        metrics=names and [name() if callable(name) else name for name in names],
        run_eagerly=True,
    )
    values = padded(model, (x, y), 8)
    whole = model.evaluate(x, y, batch_size=19, verbose=0, return_dict=True)
    for name in values:
        # A half-precision matrix product may depend on its number of rows.
        tolerance = 1e-6 if policy == "float32" else 2e-2
        assert values[name] == pytest.approx(whole[name], rel=tolerance, abs=1e-7), name


def test_one_metric_object_may_serve_two_outputs(rng):
    inputs = layers.Input((4,))
    model = keras.Model(
        inputs, [layers.Dense(1, name="a")(inputs), layers.Dense(1, name="b")(inputs)]
    )
    shared = metrics.MeanAbsoluteError(name="mae")
    model.compile("sgd", "mse", metrics=[[shared], [shared]], run_eagerly=True)
    x = rng.normal(size=(11, 4)).astype("float32")
    y = rng.normal(size=(11, 1)).astype("float32")
    values = padded(model, (x, [y, y]), 8)
    a, b = predictions(model, x)
    assert values["a_mae"] == pytest.approx(np.mean(np.abs([y - a, y - b])), rel=1e-6)


def test_a_dataset_that_repeats_partial_batches_is_padded_once(rng):
    x = rng.normal(size=(10, 4)).astype("float32")
    y = rng.normal(size=(10, 1)).astype("float32")
    model = compiled(dense(1), "mse", run_eagerly=True)
    model.test_on_batch(x, y)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4).repeat(2)
    loop = EvaluationLoop(model, evaluation_set(dataset, name="val", pad=True))
    loop.probe()
    error = np.mean((y - predictions(model, x)) ** 2)
    assert loop.run()["loss"] == pytest.approx(error, rel=1e-6)


@pytest.mark.multi_process
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_padding_is_exact_under_a_mirrored_strategy(devices):
    program = Path(__file__).with_name("mirrored_padded_evaluation.py")
    run = subprocess.run(
        [sys.executable, str(program), str(devices)], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, "exact\n"), run.stderr[-3000:]
