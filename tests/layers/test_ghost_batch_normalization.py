import json
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.layers import GhostBatchNormalization

FOLDER = Path(__file__).parent


def train(layer, x, upstream):
    """Returns outputs and the gradients of inputs, gamma and beta."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, training=True)
        loss = tf.reduce_sum(outputs * tf.cast(upstream, outputs.dtype))
    wanted = [x, *(v.value for v in layer.trainable_variables)]
    return [np.asarray(each) for each in (outputs, *tape.gradient(loss, wanted))]


def with_weights(layer, channels, shape=None):
    layer.build(shape or (None, channels))
    rng = np.random.default_rng(3)
    layer.set_weights([rng.uniform(0.5, 2, w.shape) for w in layer.get_weights()])
    return layer


def small_model(**arguments):
    model = keras.Sequential(
        [
            keras.Input((4, 4, 2)),
            keras.layers.Conv2D(3, 2),
            GhostBatchNormalization(4, **arguments),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def images(rng):
    return rng.normal(2, 1, (9, 4, 4, 2)).astype("float32")


@pytest.fixture
def trained(images):
    model = small_model()
    model.fit(images, images[:, 0, 0, :1], batch_size=9, epochs=2, verbose=0)
    return model


@pytest.mark.parametrize("shape", [(24, 3), (12, 4, 5, 3)])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.7, "epsilon": 0.1}])
def test_one_ghost_is_keras_batch_normalization(rng, shape, options):
    x, upstream = rng.normal(2, 3, shape).astype("float32"), rng.normal(size=shape)
    ours = with_weights(GhostBatchNormalization(shape[0], **options), 3, shape)
    theirs = with_weights(keras.layers.BatchNormalization(**options), 3, shape)

    for mine, keras_own in zip(train(ours, x, upstream), train(theirs, x, upstream), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=1e-5, atol=2e-6)
    for mine, keras_own in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=1e-6)


def test_variables_are_those_of_keras_and_inference_is_equal_bit_for_bit(rng):
    ours, theirs = GhostBatchNormalization(4), keras.layers.BatchNormalization()
    ours, theirs = with_weights(ours, 3), with_weights(theirs, 3)

    assert [v.name for v in ours.weights] == [v.name for v in theirs.weights]
    assert [v.shape for v in ours.weights] == [v.shape for v in theirs.weights]
    assert [v.trainable for v in ours.weights] == [v.trainable for v in theirs.weights]
    for rows in (1, 5, 6, 70):
        x = rng.normal(size=(rows, 3)).astype("float32")
        np.testing.assert_array_equal(ours(x), theirs(x))
        np.testing.assert_array_equal(ours(x, training=False), theirs(x))


@pytest.mark.parametrize("options", [{"center": False}, {"scale": False}])
def test_gamma_and_beta_can_be_left_out(rng, options):
    x, upstream = rng.normal(size=(8, 3)).astype("float32"), rng.normal(size=(8, 3))
    ours = with_weights(GhostBatchNormalization(8, **options), 3)
    theirs = with_weights(keras.layers.BatchNormalization(**options), 3)

    for mine, keras_own in zip(train(ours, x, upstream), train(theirs, x, upstream), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=1e-5, atol=1e-6)


def test_channels_may_stand_on_another_axis(rng):
    x, upstream = rng.normal(size=(10, 3, 4)).astype("float32"), rng.normal(size=(10, 3, 4))
    first = train(with_weights(GhostBatchNormalization(4, axis=1), 3, (10, 3, 4)), x, upstream)
    swapped = x.swapaxes(1, 2), upstream.swapaxes(1, 2)
    last = train(with_weights(GhostBatchNormalization(4), 3, (10, 4, 3)), *swapped)

    for place in (0, 1):
        np.testing.assert_allclose(first[place], last[place].swapaxes(1, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("moving_variance", ["pooled", "ghost"])
@pytest.mark.parametrize("rows", [8, 9, 11])
def test_moving_statistics_follow_all_ghosts_once_a_step(rng, oracle, moving_variance, rows):
    x = rng.normal(2, 3, (rows, 3)).astype("float32")
    layer = with_weights(GhostBatchNormalization(4, moving_variance=moving_variance), 3)
    before = [np.array(w, "float64") for w in layer.get_weights()[2:]]
    layer(x, training=True)

    _, measured = oracle.normalize([x.astype("float64")], 4)
    seen = oracle.batch_statistics(measured, moving_variance)
    for after, old, new in zip(layer.get_weights()[2:], before, seen, strict=True):
        np.testing.assert_allclose(after, 0.99 * old + 0.01 * new, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed_float16", "mixed_bfloat16"])
def test_small_floats_keep_float32_statistics(rng, dtype):
    layer = GhostBatchNormalization(16, dtype=dtype, momentum=0.0)
    x = keras.ops.cast(300 + rng.normal(size=(64, 200, 3)), layer.compute_dtype)
    outputs = layer(x, training=True)
    exact = np.asarray(keras.ops.cast(x, "float32"), "float64")

    assert layer.moving_mean.dtype == layer.moving_variance.dtype == "float32"
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    np.testing.assert_allclose(layer.moving_variance, exact.var(axis=(0, 1)), rtol=1e-4)


def test_float64_stays_float64(rng):
    layer = GhostBatchNormalization(8, dtype="float64", momentum=0.0)
    x = rng.normal(1e6, 1e-3, (8, 2))
    layer(x, training=True)

    np.testing.assert_allclose(layer.moving_variance, x.var(axis=0), rtol=1e-6)


@pytest.mark.parametrize("mean", [1e3, 1e4, 1e5])
@pytest.mark.parametrize("v", [16, 64])
@pytest.mark.parametrize("jit", [False, True])
def test_variance_survives_a_large_mean(rng, mean, v, jit):
    x = (mean + 0.05 * rng.normal(size=(64, 3))).astype("float32")
    layer = GhostBatchNormalization(v, momentum=0.0)
    layer.build(x.shape)
    tf.function(lambda x: layer(x, training=True), jit_compile=jit)(tf.constant(x))

    np.testing.assert_allclose(layer.moving_variance, x.astype("float64").var(axis=0), rtol=0.05)


@pytest.mark.parametrize("options", [{}, {"statistics": "subsample"}])
def test_padded_and_masked_equals_unpadded(rng, options):
    x = rng.normal(2, 3, (7, 5, 3)).astype("float32")
    mask = rng.random((7, 5)) < 0.7
    padded = np.concatenate([x, np.full((4, 5, 3), 99, "float32")])
    padding = np.concatenate([mask, np.zeros((4, 5), bool)])
    one, other = (
        with_weights(GhostBatchNormalization(3, **options), 3, (None, 5, 3)) for _ in range(2)
    )
    got = one(padded, training=True, mask=padding)
    wanted = other(x, training=True, mask=mask)

    np.testing.assert_allclose(got[:7], wanted, rtol=1e-5, atol=1e-6)
    for mine, exact in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-6)


@pytest.mark.parametrize("rows", [0, 6])
def test_step_without_examples_changes_nothing(rows):
    layer = with_weights(GhostBatchNormalization(4), 3)
    before = layer.get_weights()
    x = np.ones((rows, 3), "float32")
    outputs = layer(x, training=True, mask=np.zeros(rows, bool) if rows else None)

    assert np.isfinite(outputs).all()
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_mask_of_keras_reaches_the_statistics():
    model = keras.Sequential([keras.Input((4, 2)), keras.layers.Masking(0.0)])
    model.add(GhostBatchNormalization(8, momentum=0.0))
    x = np.ones((6, 4, 2), "float32")
    x[:, 2:] = 0
    model(x, training=True)

    np.testing.assert_allclose(model.layers[-1].moving_mean, 1)


def test_mask_of_a_wrong_rank_is_refused():
    with pytest.raises(ValueError, match=r"mask.shape=\(4, 3\)"):
        GhostBatchNormalization(2)(np.ones((4, 3)), training=True, mask=np.ones((4, 3), bool))


def test_frozen_layer_is_in_inference_mode(rng):
    layer = with_weights(GhostBatchNormalization(4), 3)
    layer.trainable = False
    before = layer.get_weights()
    x = rng.normal(size=(8, 3)).astype("float32")

    np.testing.assert_array_equal(layer(x, training=True), layer(x, training=False))
    np.testing.assert_array_equal(before, layer.get_weights())


@pytest.mark.parametrize("arguments", [{"renorm": True}, {"synchronized": True},
                                       {"synchronized": False}])  # fmt: skip
def test_what_keras_answers_otherwise_names_the_argument_to_use(arguments):
    with pytest.raises(ValueError, match="`replicas_per_group`"):
        GhostBatchNormalization(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"virtual_batch_size": 0}, "Received: virtual_batch_size=0"),
        ({"virtual_batch_size": 2.5}, "Received: virtual_batch_size=2.5"),
        ({"replicas_per_group": 0}, "Received: replicas_per_group=0"),
        ({"replicas_per_group": "some"}, "Received: replicas_per_group='some'"),
        ({"statistics": "half"}, "Received: statistics='half'"),
        ({"moving_variance": "mean"}, "Received: moving_variance='mean'"),
    ],
)
def test_wrong_arguments_are_refused_when_the_layer_is_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        GhostBatchNormalization(**arguments)


@pytest.mark.parametrize("shape", [(None, 3), (None, 1, 1, 3)])
def test_single_values_make_no_statistics(shape):
    with pytest.raises(ValueError, match="Received: virtual_batch_size=1 for input_shape"):
        GhostBatchNormalization(1).build(shape)


def test_ghosts_of_images_may_be_as_small_as_they_get(rng, oracle):
    x = rng.normal(size=(6, 4, 3)).astype("float32")
    outputs = GhostBatchNormalization(1)(x, training=True)

    np.testing.assert_allclose(outputs, oracle.normalize([x], 1)[0][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((3,), -1), ((None, 3), 0), ((None, 3), -2)])
def test_axis_of_the_examples_is_refused(shape, axis):
    with pytest.raises(ValueError, match="Received: input_shape"):
        GhostBatchNormalization(axis=axis).build(shape)


def test_config_makes_the_same_layer_again():
    arguments = {
        "virtual_batch_size": 32,
        "replicas_per_group": "all",
        "statistics": "subsample",
        "moving_variance": "ghost",
        "axis": 1,
        "momentum": 0.9,
        "epsilon": 1e-4,
        "center": False,
        "name": "ghosts",
    }
    layer = GhostBatchNormalization(**arguments, gamma_regularizer="l2")
    config = layer.get_config()

    assert arguments.items() <= config.items()
    assert not {"synchronized", "renorm", "renorm_clipping"} & config.keys()
    assert GhostBatchNormalization.from_config(config).get_config() == config


def test_saved_model_predicts_the_same_and_trains_on(trained, images, tmp_path):
    trained.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")

    assert isinstance(loaded.layers[1], GhostBatchNormalization)
    for rows in (1, 6, 9):
        x = images[:rows]
        np.testing.assert_array_equal(loaded.predict(x, verbose=0), trained.predict(x, verbose=0))
    assert np.isfinite(loaded.train_on_batch(images, images[:, 0, 0, :1]))


def test_weights_file_and_clone_give_the_same_model(trained, images, tmp_path):
    trained.save_weights(tmp_path / "model.weights.h5")
    clone = keras.models.clone_model(trained)
    clone.load_weights(tmp_path / "model.weights.h5")

    assert clone.layers[1].virtual_batch_size == 4
    np.testing.assert_array_equal(
        clone.predict(images, verbose=0), trained.predict(images, verbose=0)
    )


def test_weights_move_to_keras_and_back(trained, images, tmp_path):
    trained.save_weights(tmp_path / "model.weights.h5")
    layers = [
        keras.layers.BatchNormalization() if isinstance(layer, GhostBatchNormalization)
        else layer.__class__.from_config(layer.get_config())
        for layer in trained.layers
    ]  # fmt: skip
    plain = keras.Sequential([keras.Input((4, 4, 2)), *layers])
    plain.set_weights(trained.get_weights())

    np.testing.assert_array_equal(
        plain.predict(images, verbose=0), trained.predict(images, verbose=0)
    )


def test_exported_model_serves_any_batch_size(trained, images, tmp_path):
    trained.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    for rows in (1, 5, 70):
        x = np.resize(images, (rows, *images.shape[1:]))
        np.testing.assert_allclose(served.serve(x), trained(x), rtol=1e-5, atol=1e-6)


def test_ghosts_of_four_serve_six_examples_as_keras_does(rng, tmp_path):
    x = rng.normal(5, 2, (6, 3)).astype("float32")
    model = keras.Sequential([keras.Input((3,)), GhostBatchNormalization(4)])
    assert model(x, training=True).shape == (6, 3)
    model.save(tmp_path / "model.keras")
    plain = keras.layers.BatchNormalization()
    plain.build((None, 3))
    plain.set_weights(model.get_weights())

    for each in (model, keras.models.load_model(tmp_path / "model.keras")):
        outputs = each.predict(x, verbose=0)
        assert outputs.shape == (6, 3)
        np.testing.assert_allclose(outputs, plain(x), rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_fit_with_a_partial_batch_stays_finite(images, jit):
    model = small_model()
    model.compile("sgd", "mse", jit_compile=jit)
    history = model.fit(images, images[:, 0, 0, :1], batch_size=8, epochs=2, verbose=0)

    assert np.isfinite(history.history["loss"]).all()


@pytest.fixture(scope="module")
def fitted(run_script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    return json.loads(run_script("fit_on_replicas.py", 4, folder).splitlines()[-1]), folder


@pytest.fixture
def sorted_data():
    x = np.sort(np.random.default_rng(0).normal(size=(18, 3)) * 5, axis=0).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


@pytest.mark.multi_process
def test_empty_replicas_leave_no_trace_in_fit(fitted):
    assert np.isfinite(fitted[0]["losses"]).all()


@pytest.mark.multi_process
def test_unknown_batch_on_several_replicas_warns_once(fitted):
    (message,) = fitted[0]["warnings"]
    assert "about 8 examples" in message
    assert "4 replicas" in message


@pytest.mark.multi_process
def test_strategy_file_and_reloaded_model_agree_on_sorted_data(fitted, sorted_data):
    found, folder = fitted
    x, y = sorted_data
    assert found["bitwise"]
    model = keras.models.load_model(folder / "model.keras")
    np.testing.assert_allclose(
        model.evaluate(x, y, batch_size=18, verbose=0), found["in strategy"], rtol=1e-6
    )
    np.testing.assert_allclose(
        model.predict(x, verbose=0)[:, 0], found["predictions"], rtol=1e-5, atol=1e-6
    )
    weights = [np.array(w) for w in model.get_weights()]
    model.load_weights(folder / "model.weights.h5")
    for mine, file in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, file)


@pytest.mark.multi_process
def test_checkpoint_of_four_replicas_resumes_on_one_and_on_two(fitted, sorted_data, run_script):
    found, folder = fitted
    x, y = sorted_data
    model = keras.models.load_model(folder / "model.keras")
    assert int(model.optimizer.iterations) == 6
    alone = model.fit(x, y, batch_size=16, verbose=0).history["loss"]
    two = json.loads(run_script("fit_on_replicas.py", 2, folder, "resume").splitlines()[-1])

    assert two["steps"] == 6
    np.testing.assert_allclose(two["evaluated"], found["in strategy"], rtol=1e-6)
    np.testing.assert_allclose(two["loss"], alone[-1], rtol=0.05)


@pytest.mark.multi_process
def test_step_adds_at_most_two_reductions_a_layer(fitted):
    assert fitted[0]["collectives"] == {"1": 1, "2": 2, "all": 2}
    assert fitted[0]["collectives of Keras"] >= 3


@pytest.mark.multi_process
def test_two_workers_equal_the_oracle():
    ports = []
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(("localhost", 0))
        ports.append(each.getsockname()[1])
    for each in sockets:
        each.close()
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    workers = [
        subprocess.Popen(
            [sys.executable, str(FOLDER / "ghosts_on_workers.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(FOLDER.parents[1]),
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                ),
            },
        )
        for index in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=300) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    found = []
    for worker, (output, errors) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, errors
        found.append([json.loads(line) for line in output.splitlines()])
    for one, other in zip(*found, strict=True):
        assert one["bytes"] == other["bytes"]
        for case in (one, other):
            for what in ("outputs", "inputs", "mean", "variance"):
                assert case[what] < 1e-6, case
    assert len(found[0]) == 3


@pytest.mark.multi_process
def test_one_device_layer_runs_on_jax(run_script):
    found = json.loads(
        run_script("ghosts_on_jax.py", KERAS_BACKEND="jax", JAX_PLATFORMS="cpu").splitlines()[-1]
    )

    assert found["backend"] == "jax"
    assert not found["tensorflow"]
    for case in ("even", "uneven", "masked", "subsample"):
        assert found[case] < 5e-6
    assert np.isfinite(found["losses"]).all()
    assert "replicas_per_group=2" in found["error"]
    assert "TensorFlow" in found["error"]


@pytest.mark.accelerator
@pytest.mark.multi_process
def test_replicas_on_accelerators_equal_the_oracle():
    done = subprocess.run(
        [sys.executable, str(FOLDER / "ghosts_on_replicas.py"), "accelerators"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1])},
    )
    if done.returncode == 77:
        pytest.skip("no GPU and no TPU here")
    assert done.returncode == 0, done.stderr
    for found in map(json.loads, done.stdout.splitlines()):
        assert found["bitwise"]
        assert all(found[what] < 1e-4 for what in ("outputs", "inputs", "mean", "variance"))


def test_quiet_where_there_is_one_replica(rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GhostBatchNormalization(64)(rng.normal(size=(4, 3)), training=True)
