import keras
import numpy as np
import pytest

from tfx_tips.callbacks import StepEvaluation
from tfx_tips.callbacks.class_counts import ClassCounts
from tfx_tips.data.evaluation_set import evaluation_set


def identity(units, *, inputs=None, activation=None, **kwargs):
    """A classifier whose scores are its inputs."""
    layers = [keras.layers.Input(inputs or (units,)), keras.layers.Activation(activation)]
    model = keras.Sequential(layers)
    model.compile("sgd", kwargs.pop("loss", "sparse_categorical_crossentropy"), **kwargs)
    return model


def counted(model, data, *, rare_below=True, names=None, batch_size=8, pad=False):
    counts = ClassCounts(rare_below, names)
    sets = {"val": evaluation_set(data, name="val", batch_size=batch_size, pad=pad)}
    counts.prepare(model, sets)
    return counts.count("val"), counts


def expected(labels, predicted, classes, prefix="val"):
    """Counts by a confusion matrix made in a loop."""
    matrix = np.zeros((classes, classes), int)
    for label, guess in zip(np.ravel(labels), np.ravel(predicted), strict=True):
        matrix[label, guess] += 1
    found = {}
    for index in range(classes):
        found[f"{prefix}_correct/{index}"] = matrix[index, index]
        found[f"{prefix}_count/{index}"] = matrix[index].sum()
    return found


@pytest.fixture
def scores(rng):
    return rng.normal(size=(21, 3)).astype("float32"), rng.integers(0, 3, 21)


@pytest.mark.parametrize(
    "encode",
    [
        lambda y: y,
        lambda y: y[:, None],
        lambda y: y.astype("float64"),
        lambda y: np.eye(3)[y],
        lambda y: 0.9 * np.eye(3)[y] + 0.1 / 3,
    ],
    ids=["integers", "column", "floats", "one-hot", "smoothed"],
)
@pytest.mark.parametrize("pad", [False, True])
def test_counts_equal_a_confusion_matrix(scores, encode, pad):
    x, y = scores
    metrics, _ = counted(identity(3), (x, encode(y)), pad=pad)
    assert metrics == expected(y, x.argmax(1), 3)
    assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.parametrize(
    ("loss", "threshold"),
    [
        ("binary_crossentropy", 0.5),
        (keras.losses.BinaryCrossentropy(from_logits=True), 0.0),
    ],
    ids=["probabilities", "logits"],
)
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_one_output_is_a_probability_or_a_logit(rng, loss, threshold, shape):
    x = rng.normal(0.3, 0.5, size=(21, 1)).astype("float32")
    y = rng.integers(0, 2, 21)
    metrics, _ = counted(identity(1, loss=loss), (x, y.reshape(shape)))
    assert metrics == expected(y, (x[:, 0] > threshold).astype(int), 2)


def test_pixels_are_counted_and_labels_outside_the_classes_are_not(rng):
    x = rng.normal(size=(11, 4, 5, 3)).astype("float32")
    y = rng.integers(-1, 3, (11, 4, 5))
    metrics, _ = counted(identity(3, inputs=(4, 5, 3)), (x, y), rare_below=1000, pad=True)
    assert metrics == expected(y[y >= 0], x.argmax(-1)[y >= 0], 3)


def test_only_rare_classes_are_reported_and_named():
    x = np.eye(3, dtype="float32")[[0, 0, 0, 1, 1, 0]]
    y = np.array([0, 0, 0, 1, 1, 1])
    metrics, counts = counted(identity(3), (x, y), rare_below=3, names=["cat", "dog", "owl"])
    assert metrics == {"val_correct/owl": 0, "val_count/owl": 0}
    metrics, counts = counted(identity(3), (x, y), rare_below=4, names=["cat", "dog", "owl"])
    assert metrics["val_correct/dog"] == 2
    assert metrics["val_count/dog"] == 3
    assert counts.report().splitlines() == [
        "val, class cat: 3 of 3 correct, recall 100.0%, one example is 33.3%",
        "val, class dog: 2 of 3 correct, recall 66.7%, one example is 33.3%",
        "val, class owl: 0 of 0 correct, no examples, so nothing is known of it",
    ]
    _, counts = counted(identity(3), (x, [1, 1, 1, 0, 2, 0] * np.ones(6, int)), rare_below=1)
    assert counts.report() == "No class has fewer than 1 examples."


def test_eager_models_are_counted(scores):
    x, y = scores

    class Eager(keras.layers.Layer):
        def call(self, inputs):
            return keras.ops.convert_to_tensor(inputs.numpy())

        def compute_output_shape(self, shape):
            return shape

    model = keras.Sequential([keras.layers.Input((3,)), Eager()])
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    metrics, _ = counted(model, (x, y))
    assert metrics == expected(y, x.argmax(1), 3)


def test_many_counts_trace_once(scores):
    x, y = scores
    traces = []

    class Traced(keras.layers.Layer):
        def call(self, inputs):
            traces.append(inputs.shape)
            return inputs

    model = keras.Sequential([keras.layers.Input((3,)), Traced()])
    model.compile("sgd", "sparse_categorical_crossentropy")
    traces.clear()
    first, counts = counted(model, (x, y), pad=True)
    for _ in range(5):
        assert counts.count("val") == first
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_counts": 0}, "`class_counts` must be an integer of at least 1"),
        ({"class_counts": 2.5}, "`class_counts` must be an integer of at least 1"),
        ({"class_counts": True, "class_names": ["a", "a"]}, "name each class differently"),
    ],
)
def test_wrong_arguments_are_refused_at_once(scores, arguments, message):
    with pytest.raises(ValueError, match=message):
        StepEvaluation(scores, every_steps=5, **arguments)


def two_outputs():
    inputs = keras.layers.Input((3,))
    model = keras.Model(inputs, [keras.layers.Dense(2)(inputs), keras.layers.Dense(2)(inputs)])
    model.compile("sgd", "mse")
    return model


REFUSED = {
    "several outputs": (
        two_outputs,
        lambda x, y: (x, [x[:, :2]] * 2),
        {},
        "2 outputs and 2 labels",
    ),
    "too few names": (
        lambda: identity(3),
        lambda x, y: (x, y),
        {"class_names": ["a", "b"]},
        "2 names for 3 classes",
    ),
    "several classes at once": (
        lambda: identity(3, loss="binary_crossentropy", activation="sigmoid"),
        lambda x, y: (x, np.ones((21, 3))),
        {},
        "labels of one class.*sum to 3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_classifier_is_refused_before_the_first_step(scores, case):
    make, data, arguments, message = REFUSED[case]
    model, (x, y) = make(), data(*scores)
    evaluation = StepEvaluation((x, y), every_steps=1, class_counts=True, **arguments)
    with pytest.raises(ValueError, match=message) as error:
        model.fit(x, y, verbose=0, callbacks=[evaluation])
    assert "Received:" in str(error.value)
    assert int(model.optimizer.iterations) == 0


def test_counts_reach_logs_history_and_report(scores):
    x, y = scores
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    evaluation = StepEvaluation(
        {"a": (x, y), "b": (x[:9], y[:9])}, every_steps=2, class_counts=True, class_names="xyz"
    )
    log = model.fit(x[:16], y[:16], batch_size=4, verbose=0, callbacks=[evaluation]).history
    guess = model.predict_on_batch(x).argmax(1)
    names = dict(zip("012", "xyz", strict=True))
    for prefix, rows in (("a", 21), ("b", 9)):
        for name, value in expected(y[:rows], guess[:rows], 3, prefix).items():
            named = name[:-1] + names[name[-1]]
            assert log[named] == [value]
            assert evaluation.history[-1].metrics[named] == value
    assert len(evaluation.class_report().splitlines()) == 6
