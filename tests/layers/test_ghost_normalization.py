import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.layers.ghost_formation import form_ghosts
from tfx_tips.layers.ghost_normalization import normalize_ghosts
from tfx_tips.layers.replica_groups import ReplicaGroups

GAMMA, BETA = np.array([1.5, -0.5, 2.0]), np.array([0.3, 0.0, -1.0])
EPSILON = 1e-3
FALLBACK = BETA.astype("float32"), np.array([0.5, 1, 2], "float32")


def run(x, upstream, v, *, mode="eager", mask=None, subsample=False):
    """Returns outputs and gradients of inputs, gamma and beta."""

    def step(x, upstream, gamma, beta, mask=None):
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            partition = form_ghosts(
                x, x.shape.rank - 1, mask, virtual_batch_size=v, single=False, subsample=subsample
            )
            outputs, _ = normalize_ghosts(
                x, gamma, beta, FALLBACK, partition, ReplicaGroups(), epsilon=EPSILON
            )
            loss = tf.reduce_sum(outputs * upstream)
        return (outputs, *tape.gradient(loss, [x, gamma, beta]))

    arguments = [tf.constant(each, "float32") for each in (x, upstream, GAMMA, BETA)]
    if mask is not None:
        arguments.append(tf.constant(mask))
    if mode != "eager":
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in arguments]
        if "dynamic" in mode:
            for place in (0, 1, *range(4, len(specs))):
                shape = [None, *specs[place].shape[1:]]
                specs[place] = tf.TensorSpec(shape, specs[place].dtype)
        step = tf.function(step, jit_compile="jit" in mode, input_signature=specs)
    return [np.asarray(each) for each in step(*arguments)]


def assert_near(got, wanted, tolerance=1e-6):
    for mine, exact in zip(got, wanted, strict=True):
        known = ~np.isnan(exact)
        scale = np.abs(exact[known]).max()
        np.testing.assert_allclose(mine[known], exact[known], rtol=0, atol=tolerance * scale)


def check(oracle, rng, shape, v, *, mode="eager", mask=None, subsample=False, tolerance=1e-6):
    x = rng.normal(2, 3, shape).astype("float32")
    upstream = rng.normal(size=shape).astype("float32")
    got = run(x, upstream, v, mode=mode, mask=mask, subsample=subsample)
    exact, masks = [x.astype("float64")], [mask]
    options = {"subsample": subsample, "masks": masks, "epsilon": EPSILON}
    (outputs,), _ = oracle.normalize(exact, v, gamma=GAMMA, beta=BETA, **options)
    assert_near(got[:1], [outputs], tolerance)
    if mask is None:
        (inputs,), gamma, beta = oracle.gradients(
            exact, [upstream], v, gamma=GAMMA, beta=BETA, **options
        )
        assert_near(got[1:], [inputs, gamma, beta], 2 * tolerance)


@pytest.mark.parametrize("v", [4, 16, 32, 64])
@pytest.mark.parametrize("rows", [9, 65, 70, 100, 127])
def test_any_batch_size_matches_the_oracle(oracle, rng, rows, v):
    check(oracle, rng, (rows, 3), v)


@pytest.mark.parametrize("mode", ["graph", "dynamic", "jit", "dynamic jit"])
@pytest.mark.parametrize("shape", [(64, 3), (9, 3), (8, 2, 4, 3), (9, 4, 3)])
def test_graphs_compiled_or_not_match_the_oracle(oracle, rng, mode, shape):
    check(oracle, rng, shape, 4, mode=mode)


@pytest.mark.parametrize("mode", ["eager", "jit", "dynamic"])
@pytest.mark.parametrize("rows", [40, 64, 65, 256])
def test_subsample_matches_the_oracle(oracle, rng, rows, mode):
    check(oracle, rng, (rows, 3), 64, mode=mode, subsample=True)


@pytest.mark.parametrize("mode", ["eager", "jit", "dynamic"])
@pytest.mark.parametrize("subsample", [False, True])
def test_masks_match_the_oracle(oracle, rng, mode, subsample):
    mask = rng.random((23, 4)) < 0.6
    mask[[3, 4, 20, 22]] = False
    check(oracle, rng, (23, 4, 3), 4, mode=mode, mask=mask, subsample=subsample)


def test_second_derivatives_are_those_of_finite_differences(rng):
    def penalty(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            partition = form_ghosts(x, 1, None, virtual_batch_size=5, single=False, subsample=False)
            ones = tf.ones(3, "float64")
            outputs, _ = normalize_ghosts(
                x, ones, ones, (ones, ones), partition, ReplicaGroups(), epsilon=EPSILON
            )
            loss = tf.reduce_sum(tf.sin(outputs) * x)
        return tf.reduce_sum(tf.square(tape.gradient(loss, x)))

    x = rng.normal(size=(11, 3))
    with tf.GradientTape() as tape:
        variable = tf.constant(x)
        tape.watch(variable)
        value = penalty(variable)
    got = np.asarray(tape.gradient(value, variable))

    for place in ((0, 0), (4, 1), (10, 2)):
        step = np.zeros_like(x)
        step[place] = 1e-6
        difference = (penalty(tf.constant(x + step)) - penalty(tf.constant(x - step))) / 2e-6
        np.testing.assert_allclose(got[place], difference, rtol=1e-5, atol=1e-7)


def test_ghost_in_which_a_mask_leaves_nothing_falls_back(rng):
    x = rng.normal(size=(4, 3)).astype("float32")
    outputs, inputs, *_ = run(x, np.ones_like(x), 2, mask=np.zeros(4, bool))

    mean, variance = FALLBACK
    scale = GAMMA / np.sqrt(variance + EPSILON)
    np.testing.assert_allclose(outputs, (x - mean) * scale + BETA, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inputs, np.broadcast_to(scale, x.shape), rtol=1e-5)


@pytest.mark.parametrize("mode", ["eager", "graph", "dynamic", "jit"])
def test_empty_batch_gives_no_numbers_and_zero_gradients(mode):
    empty = np.zeros((0, 3), "float32")
    outputs, inputs, gamma, beta = run(empty, empty, 4, mode=mode)

    assert outputs.shape == inputs.shape == (0, 3)
    np.testing.assert_array_equal([gamma, beta], 0)
