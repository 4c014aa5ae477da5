import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks import StepEvaluation, read_predictions

layers = keras.layers


def small(**kwargs):
    model = keras.Sequential([layers.Input((4,)), layers.Dense(2)])
    model.compile("sgd", "mse", **kwargs)
    return model


@pytest.fixture
def data(rng):
    x = rng.normal(size=(19, 4)).astype("float32")
    return x, rng.normal(size=(19, 2)).astype("float32")


class Outputs(keras.callbacks.Callback):
    """Notes what the model predicts for some rows whenever an evaluation has happened."""

    def __init__(self, evaluation, x):
        super().__init__()
        self.x, self.seen = x, []
        evaluation.subscribe(lambda record: self.seen.append(model_outputs(self.model, self.x)))


def model_outputs(model, x):
    return keras.tree.map_structure(np.asarray, model(x, training=False))


@pytest.mark.parametrize(
    "mode",
    [{}, {"steps_per_execution": 4}, {"run_eagerly": True}, {"pad_partial_batch": True}],
    ids=str,
)
def test_outputs_are_lined_up_by_example_over_steps(data, tmp_path, mode):
    x, y = data
    pad = mode.pop("pad_partial_batch", False)
    model, ids = small(**mode), [17, 0, 5]
    evaluation = StepEvaluation(
        data, every_steps=4, batch_size=8, predictions=ids, log_dir=tmp_path, pad_partial_batch=pad
    )
    outputs = Outputs(evaluation, x[ids])
    model.fit(x[:16], y[:16], batch_size=2, verbose=0, callbacks=[evaluation, outputs])
    mode |= {"pad_partial_batch": True} if pad else {}

    found = read_predictions(tmp_path)
    np.testing.assert_array_equal(found.steps, [4, 8])
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_array_equal(found.labels["label"], y[ids])
    np.testing.assert_allclose(found.outputs["output"], outputs.seen, rtol=1e-5)
    files = sorted((tmp_path / "predictions" / "val").iterdir())
    assert [file.name for file in files] == ["step-00000004.npz", "step-00000008.npz"]


def test_files_hold_plain_arrays(data, tmp_path):
    evaluation = StepEvaluation(data, every_steps=5, predictions=3, log_dir=tmp_path)
    small().fit(*data, verbose=0, callbacks=[evaluation])
    (file,) = tmp_path.glob("predictions/val/*.npz")
    with np.load(file, allow_pickle=False) as arrays:
        kinds = {name: arrays[name].dtype.kind for name in arrays.files}
    assert kinds == {"id": "i", "label": "f", "output": "f"}


def test_more_examples_than_a_batch_are_predicted_in_batches(data, tmp_path):
    x, y = data
    shapes = []

    class Seen(layers.Layer):
        def call(self, inputs):
            shapes.append(inputs.shape[0])
            return inputs

    model = keras.Sequential([layers.Input((4,)), Seen(), layers.Dense(2)])
    model.compile("sgd", "mse", run_eagerly=True)
    evaluation = StepEvaluation(
        data, every_steps=9, batch_size=4, predictions=np.int64(19), log_dir=tmp_path
    )
    model.fit(x[:4], y[:4], batch_size=4, verbose=0, callbacks=[evaluation])
    assert max(size for size in shapes if size) == 4
    np.testing.assert_allclose(
        read_predictions(tmp_path).outputs["output"][0], model_outputs(model, x), rtol=1e-5
    )


def test_nested_outputs_and_several_sets_keep_their_names(data, tmp_path):
    x, y = data
    inputs = layers.Input((4,))
    model = keras.Model(
        inputs,
        {"a": layers.Dense(2)(inputs), "b": [layers.Dense(1)(inputs), layers.Dense(3)(inputs)]},
    )
    model.compile("sgd", {"a": "mse", "b": ["mse", "mse"]})
    targets = {"a": y, "b": (y[:, :1], np.repeat(y[:, :1], 3, axis=1))}
    evaluation = StepEvaluation(
        {
            "one": (x, targets),
            "two": (x[::-1], keras.tree.map_structure(lambda t: t[::-1], targets)),
        },
        every_steps=9,
        predictions=2,
        log_dir=tmp_path,
    )
    model.fit(x, targets, verbose=0, callbacks=[evaluation])
    output = model_outputs(model, x)
    for name, rows in (("one", [0, 1]), ("two", [18, 17])):
        found = read_predictions(tmp_path, name)
        assert set(found.outputs) == {"output.a", "output.b.0", "output.b.1"}
        assert set(found.labels) == {"label.a", "label.b.0", "label.b.1"}
        np.testing.assert_allclose(found.outputs["output.a"][0], output["a"][rows], rtol=1e-5)
        np.testing.assert_allclose(found.outputs["output.b.1"][0], output["b"][1][rows], rtol=1e-5)
        np.testing.assert_array_equal(found.labels["label.b.0"], y[rows, :1])


def test_half_precision_outputs_are_readable(data, tmp_path):
    x, y = data
    model = keras.Sequential([layers.Input((4,)), layers.Dense(2, dtype="mixed_bfloat16")])
    model.compile("sgd", "mse")
    evaluation = StepEvaluation(data, every_steps=9, predictions=2, log_dir=tmp_path)
    model.fit(x, y, verbose=0, callbacks=[evaluation])
    output = read_predictions(tmp_path).outputs["output"][0]
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, tf.cast(model(x[:2]), tf.float32), rtol=1e-2)


def test_strings_are_stored_as_bytes(tmp_path):
    words = np.array(["né", "b", "cc"])
    lookup = layers.StringLookup(vocabulary=["b", "cc"], output_mode="one_hot")
    model = keras.Sequential([layers.Input((1,), dtype="string"), lookup, layers.Dense(1)])

    class AnyLabel(keras.losses.Loss):
        def __call__(self, y_true, y_pred, sample_weight=None):
            return keras.ops.mean(y_pred)

    model.compile("sgd", AnyLabel())
    evaluation = StepEvaluation((words, words), every_steps=9, predictions=3, log_dir=tmp_path)
    train = tf.data.Dataset.from_tensors((words[:, None], words))
    model.fit(train, shuffle=False, verbose=0, callbacks=[evaluation])
    labels = read_predictions(tmp_path).labels["label"]
    assert [label.decode("utf-8") for label in labels] == list(words)


def test_the_reader_keeps_examples_that_every_file_has(data, tmp_path):
    model = small()
    for ids in ([1, 2, 3], [3, 4, 1]):
        evaluation = StepEvaluation(data, every_steps=99, predictions=ids, log_dir=tmp_path)
        model.fit(*data, verbose=0, callbacks=[evaluation])
    found = read_predictions(tmp_path)
    np.testing.assert_array_equal(found.ids, [3, 1])
    np.testing.assert_array_equal(found.steps, [1, 2])
    np.testing.assert_array_equal(found.labels["label"], data[1][[3, 1]])
    np.testing.assert_allclose(
        found.outputs["output"][1], model_outputs(model, data[0][[3, 1]]), rtol=1e-5
    )


def test_what_does_not_fit_the_budget_is_refused_before_the_first_step(data, tmp_path):
    model = small()
    # 3 ids of 8 bytes, 3 * 2 outputs and 3 * 2 labels of 4 bytes.
    enough = StepEvaluation(
        data, every_steps=1, predictions=3, predictions_bytes=72, log_dir=tmp_path
    )
    model.fit(*data, verbose=0, callbacks=[enough])
    short = StepEvaluation(
        data, every_steps=1, predictions=3, predictions_bytes=71, log_dir=tmp_path
    )
    with pytest.raises(ValueError, match=r"3 examples of 'val' take 72 bytes.*Received: .*=71"):
        model.fit(*data, verbose=0, callbacks=[short])
    assert int(model.optimizer.iterations) == 1


def test_examples_that_do_not_exist_are_refused_before_the_first_step(data, tmp_path):
    model = small()
    evaluation = StepEvaluation(data, every_steps=1, predictions=[3, 19], log_dir=tmp_path)
    with pytest.raises(ValueError, match=r"'val' does not have. Received: \[19\].*19 examples"):
        model.fit(*data, verbose=0, callbacks=[evaluation])
    assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize("examples", [0, -1, 2.5, True, [], [-1], [1, 1]])
def test_wrong_examples_are_refused_at_once(data, tmp_path, examples):
    with pytest.raises(ValueError, match=r"`predictions` must be.*Received: predictions="):
        StepEvaluation(data, every_steps=1, predictions=examples, log_dir=tmp_path)


def test_files_need_a_folder(data):
    with pytest.raises(ValueError, match="Pass `log_dir`"):
        StepEvaluation(data, every_steps=1, predictions=3)


def test_what_was_never_written_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="Pass `predictions` and `log_dir`"):
        read_predictions(tmp_path, "test")


def test_a_killed_writers_file_is_removed_at_the_next_start(data, tmp_path):
    stray = tmp_path / "predictions" / "val" / ".unfinished-0a-step-00000001.npz"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"half")
    evaluation = StepEvaluation(data, every_steps=9, predictions=2, log_dir=tmp_path)
    small().fit(*data, verbose=0, callbacks=[evaluation])
    assert [path.name for path in stray.parent.iterdir()] == ["step-00000001.npz"]


def test_the_run_stays_bit_identical_with_everything_that_is_written(data, tmp_path):
    x, _ = data
    y = np.arange(19) % 3

    def run(**arguments):
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                layers.Input((4,)),
                layers.Dense(5),
                layers.BatchNormalization(),
                layers.Dropout(0.5),
                layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        evaluation = StepEvaluation((x, y), every_steps=3, **arguments)
        callbacks = [evaluation] if arguments else []
        log = model.fit(x, y, batch_size=4, verbose=0, callbacks=callbacks).history
        variables = [*model.variables, *model.optimizer.variables]
        return {key: log[key] for key in ("loss", "accuracy")}, [np.asarray(v) for v in variables]

    plain, plain_variables = run()
    log, variables = run(predictions=5, class_counts=True, export=True, log_dir=tmp_path)
    assert log == plain
    for a, b in zip(plain_variables, variables, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(list(tmp_path.glob("exports/step-*"))) == 2
