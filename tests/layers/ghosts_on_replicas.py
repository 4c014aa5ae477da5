"""Compares the layer on several replicas with the oracle; one strategy in one process.

Run: python ghosts_on_replicas.py REPLICAS (or "accelerators"). Prints a line of JSON for each case.
"""

import json
import logging
import sys
import warnings

warnings.simplefilter("error")
logging.getLogger("tensorflow").setLevel("ERROR")

import ghost_oracle
import numpy as np
import tensorflow as tf

from tfx_tips.layers import GhostBatchNormalization

CHANNELS = 3
# Name: splits of the batch, arguments of the layer, replicas that the oracle puts in a group.
CASES = {
    "inside": ([16, 16, 16, 16], {"virtual_batch_size": 4, "replicas_per_group": 1}, 1),
    "uneven inside": ([64, 64, 64, 8], {"virtual_batch_size": 16, "replicas_per_group": 1}, 1),
    "uneven all": ([64, 64, 64, 8], {"virtual_batch_size": 256, "replicas_per_group": "all"}, 4),
    "pairs": ([16, 16, 16, 16], {"virtual_batch_size": 32, "replicas_per_group": 2}, 2),
    "uneven pairs": ([9, 5, 7, 1], {"virtual_batch_size": 16, "replicas_per_group": 2}, 2),
    "empty replica": ([6, 2, 9, 0], {"virtual_batch_size": 8, "replicas_per_group": 1}, 1),
    "empty in a group": ([8, 0, 5, 3], {"virtual_batch_size": 8, "replicas_per_group": 2}, 2),
    "empty group": ([8, 3, 0, 0], {"virtual_batch_size": 8, "replicas_per_group": 2}, 2),
    "auto finds pairs": ([8, 8, 8, 8], {"virtual_batch_size": 16}, 2),
    "auto stays inside": ([16, 16, 16, 16], {"virtual_batch_size": 16}, 1),
    "auto takes all": ([4, 4, 4, 4], {"virtual_batch_size": 64}, 4),
    "auto agrees on the largest": ([16, 16, 16, 2], {"virtual_batch_size": 16}, 1),
    "ghost variance": (
        [9, 5, 7, 3],
        {"virtual_batch_size": 4, "replicas_per_group": 1, "moving_variance": "ghost"},
        1,
    ),
    "ghost variance of groups": (
        [9, 5, 7, 3],
        {"virtual_batch_size": 16, "replicas_per_group": 2, "moving_variance": "ghost"},
        2,
    ),
    "subsample": (
        [20, 9, 8, 3],
        {"virtual_batch_size": 8, "replicas_per_group": 1, "statistics": "subsample"},
        1,
    ),
    "subsample of groups": (
        [20, 9, 8, 3],
        {"virtual_batch_size": 8, "replicas_per_group": 2, "statistics": "subsample"},
        2,
    ),
}
# Where the batch of a replica is static; elsewhere it is known only at run time.
STATIC = {"pairs", "empty in a group", "empty group", "ghost variance", "subsample"}


def forget_shape(value):
    return tf.compat.v1.placeholder_with_default(value, [None, *value.shape[1:]])


def spread(strategy, values):
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )


def local(strategy, value):
    return [np.asarray(each) for each in strategy.experimental_local_results(value)]


def make_layer(strategy, arguments):
    with strategy.scope():
        layer = GhostBatchNormalization(**arguments)
        layer.build((None, CHANNELS))
    rng = np.random.default_rng(5)
    layer.momentum = 0.5
    layer.set_weights([rng.normal(1, 0.5, CHANNELS).astype("float32") for _ in range(4)])
    return layer


def step(strategy, layer, parts, upstream, masks=None, *, static=False):
    """Returns outputs, gradients of inputs, gamma and beta, each as a list by replica."""
    arguments = [spread(strategy, parts), spread(strategy, upstream)]
    if masks is not None:
        arguments.append(spread(strategy, masks))

    @tf.function
    def run(*arguments):
        def one(x, upstream, mask=None):
            if not static:
                x, upstream = forget_shape(x), forget_shape(upstream)
                mask = mask if mask is None else forget_shape(mask)
            with tf.GradientTape() as tape:
                tape.watch(x)
                outputs = layer(x, training=True, mask=mask)
                loss = tf.reduce_sum(outputs * upstream)
            wanted = [x, layer.gamma.value, layer.beta.value]
            return (outputs, *tape.gradient(loss, wanted))

        return strategy.run(one, args=arguments)

    return [local(strategy, value) for value in run(*arguments)]


def distance(got, wanted, scale=None):
    """Returns the largest distance relative to the largest value that is wanted."""
    if not np.size(wanted):
        return 0.0 if np.shape(got) == np.shape(wanted) else float("inf")
    known = ~np.isnan(wanted)
    if not np.all(np.isfinite(got)):
        return float("inf")
    scale = np.abs(wanted[known]).max() if scale is None else scale
    return float(np.abs(got - wanted)[known].max() / max(scale, 1e-3)) if known.any() else 0.0


def compare(strategy, splits, arguments, group, *, static, offset=2.0, width=3.0, masked=False):
    rng = np.random.default_rng(0)
    parts = [rng.normal(offset, width, (b, CHANNELS)).astype("float32") for b in splits]
    upstream = [rng.normal(size=part.shape).astype("float32") for part in parts]
    masks = [np.arange(b) % 3 != 1 for b in splits] if masked else None
    layer = make_layer(strategy, arguments)
    gamma, beta, mean, variance = (np.asarray(w, "float64") for w in layer.get_weights())
    got = step(strategy, layer, parts, upstream, masks, static=static)
    exact = [part.astype("float64") for part in parts]
    options = {
        "p": group,
        "subsample": arguments.get("statistics") == "subsample",
        "masks": masks,
    }
    v = arguments["virtual_batch_size"]
    outputs, measured = ghost_oracle.normalize(exact, v, gamma=gamma, beta=beta, **options)
    if masked:
        upstream = [np.where(m[:, None], u, 0) for m, u in zip(masks, upstream, strict=True)]
    of_inputs, of_gamma, of_beta = ghost_oracle.gradients(
        exact, upstream, v, gamma=gamma, beta=beta, **options
    )
    to_mean, to_variance = ghost_oracle.batch_statistics(
        measured, arguments.get("moving_variance", "pooled")
    )
    means, variances = (
        local(strategy, w.value) for w in (layer.moving_mean, layer.moving_variance)
    )
    scale = max(np.abs(part).max() for part in of_inputs if part.size)
    found = {
        "outputs": max(map(distance, got[0], outputs)),
        "mean": distance(means[0], 0.5 * mean + 0.5 * to_mean),
        "variance": distance(variances[0], 0.5 * variance + 0.5 * to_variance),
        "bitwise": all(
            np.array_equal(each[0], other) for each in (means, variances) for other in each[1:]
        ),
    }
    if not masked:
        found |= {
            "inputs": max(distance(*pair, scale) for pair in zip(got[1], of_inputs, strict=True)),
            "gamma": distance(sum(got[2]), of_gamma),
            "beta": distance(sum(got[3]), of_beta),
        }
    return found


def report(name, found):
    print(json.dumps({"case": name, **found}), flush=True)


def uneven_totals(strategy):
    """Values 0 to 5, 100, 104, split 6+2 and 8+0, momentum 0."""
    values = np.array([0, 1, 2, 3, 4, 5, 100, 104], "float32")[:, None]
    for cut in (6, 8):
        parts = [values[:cut], values[cut:]]
        with strategy.scope():
            layer = GhostBatchNormalization(8, replicas_per_group="all", momentum=0.0)
            layer.build((None, 1))
        got = step(strategy, layer, parts, parts)
        report(
            f"{cut}+{8 - cut}",
            {
                "mean": float(layer.moving_mean[0]),
                "variance": float(layer.moving_variance[0]),
                "outputs": np.concatenate(got[0])[:, 0].tolist(),
                "finite": all(np.isfinite(each).all() for part in got for each in part),
            },
        )


def on_accelerators():
    """Runs on the TPU cores or GPUs that there are; exits with 77 without."""
    if tf.config.list_logical_devices("TPU"):
        tf.tpu.experimental.initialize_tpu_system()
        strategy = tf.distribute.TPUStrategy()
    elif tf.config.list_physical_devices("GPU"):
        strategy = tf.distribute.MirroredStrategy()
    else:
        sys.exit(77)
    replicas = strategy.num_replicas_in_sync
    splits = [16] * replicas
    for group in {1, replicas}:
        arguments = {"virtual_batch_size": 8, "replicas_per_group": group}
        report(f"groups of {group}", compare(strategy, splits, arguments, group, static=True))


def main():
    if sys.argv[1] == "accelerators":
        on_accelerators()
        return
    replicas = int(sys.argv[1])
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * replicas,
    )
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    if replicas == 2:
        uneven_totals(strategy)
        return
    for name, (splits, arguments, group) in CASES.items():
        static = name.startswith("auto") or name in STATIC
        report(name, compare(strategy, splits, arguments, group, static=static))
    for name in ("inside", "uneven pairs", "subsample of groups"):
        found = compare(strategy, *CASES[name], static=False, masked=True)
        report(f"{name}, masked", found)
    for offset in (1e3, 1e5):
        for name in ("pairs", "inside"):
            found = compare(strategy, *CASES[name], static=False, offset=offset, width=0.05)
            report(f"{name}, mean {offset:g}", found)


if __name__ == "__main__":
    main()
