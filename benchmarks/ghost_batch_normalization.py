"""What ghosts cost: a step, the first step, and reductions between replicas.

Run: python benchmarks/ghost_batch_normalization.py (tf_keras is measured where it is installed).
A step is forward and backward of one layer with static shapes. All layers take turns in every
round of one process; medians count. First steps trace (and compile) a new function each time.
"""

import json
import statistics
import subprocess
import sys
import time

import keras
import tensorflow as tf
from machine import describe_machine, markdown_table, write_section

from tfx_tips.layers import GhostBatchNormalization

ROUNDS, FIRST_STEPS = 7, 5
SHAPES = {"conv 256x16x16x128": (256, 16, 16, 128), "MLP 1024x512": (1024, 512)}
KERAS = "BatchNormalization"


class SplitLoop(keras.layers.Layer):
    """What most implementations do: Python slices, each through batch normalization."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.norm = keras.layers.BatchNormalization()

    def build(self, shape):
        self.norm.build(shape)

    def call(self, inputs, training=None):
        parts = tf.split(inputs, inputs.shape[0] // self.size)
        return tf.concat([self.norm(part, training=training) for part in parts], axis=0)


def layer_makers():
    makers = {KERAS: keras.layers.BatchNormalization}
    for size in (32, 64):
        makers[f"ghosts of {size}"] = lambda size=size: GhostBatchNormalization(size)
        makers[f"split loop, {size}"] = lambda size=size: SplitLoop(size)
    try:
        import tf_keras
    except ImportError:
        return makers
    for size in (32, 64):
        makers[f"tf_keras, {size}"] = lambda size=size: tf_keras.layers.BatchNormalization(
            virtual_batch_size=size, fused=False
        )
    return makers


def make_step(layer, shape, jit):
    layer.build(shape)
    variables = [getattr(v, "value", v) for v in layer.trainable_variables]
    variables = [v() if callable(v) else v for v in variables]

    @tf.function(jit_compile=jit)
    def step(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, training=True)
        return outputs, tape.gradient(outputs, [x, *variables], output_gradients=upstream)

    return step


def timed(step, *arguments):
    begin = time.perf_counter()
    outputs, gradients = step(*arguments)
    # Waits for both passes.
    outputs[:1].numpy(), gradients[0][:1].numpy()
    return time.perf_counter() - begin


def measure(shape, jit):
    x, upstream = tf.random.normal(shape), tf.random.normal(shape)
    steps, times, firsts = {}, {}, {}
    for name, make in layer_makers().items():
        try:
            step = make_step(make(), shape, jit)
            timed(step, x, upstream)
        except (tf.errors.OpError, ValueError) as error:
            print(f"{name} cannot be measured: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        steps[name], times[name], firsts[name] = step, [], []
    repeats = 1 if len(shape) > 2 else 5
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name] += [timed(step, x, upstream) for _ in range(repeats)]
    for _ in range(FIRST_STEPS):
        for name in steps:
            step = make_step(layer_makers()[name](), shape, jit)
            firsts[name].append(timed(step, x, upstream))
    return [{name: statistics.median(found[name]) for name in steps} for found in (times, firsts)]


class CountingReduction(tf.distribute.ReductionToOneDevice):
    count = 0

    def reduce_implementation(self, *args, **kwargs):
        self.count += 1
        return super().reduce_implementation(*args, **kwargs)


def count_reductions(replicas):
    """Prints how many reductions one layer adds to a step; one strategy in one process."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * replicas,
    )
    counter = CountingReduction()
    devices = [f"CPU:{index}" for index in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=counter)
    found = {}
    for name, make in {
        "ghosts inside a replica": lambda: GhostBatchNormalization(8, replicas_per_group=1),
        "ghosts of two replicas": lambda: GhostBatchNormalization(8, replicas_per_group=2),
        "one ghost over all": lambda: GhostBatchNormalization(8, replicas_per_group="all"),
        "BatchNormalization(synchronized=True)": lambda: keras.layers.BatchNormalization(
            synchronized=True
        ),
    }.items():
        with strategy.scope():
            layer = make()
            layer.build((None, 3))
        traces = []

        def one(layer=layer, traces=traces):
            traces.append(1)
            x = tf.ones((4, 3))
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.square(layer(x, training=True)))
            return tape.gradient(loss, x)

        before = counter.count
        tf.function(lambda one=one: strategy.run(one)).get_concrete_function()
        found[name] = (counter.count - before) * replicas // len(traces)
    print(json.dumps(found))


def main():
    if len(sys.argv) > 1:
        count_reductions(int(sys.argv[1]))
        return
    rows = []
    for title, shape in SHAPES.items():
        for jit in (False, True):
            step, first = measure(shape, jit)
            for name in step:
                rows.append(
                    [
                        title,
                        "XLA" if jit else "graph",
                        name,
                        f"{step[name] * 1e3:.1f}",
                        f"{step[name] / step[KERAS]:.2f}",
                        f"{first[name]:.2f}",
                        f"{first[name] / first[KERAS]:.2f}",
                    ]
                )
                print(*rows[-1], flush=True)
    counted = {
        replicas: json.loads(
            subprocess.run(
                [sys.executable, __file__, str(replicas)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()[-1]
        )
        for replicas in (2, 4)
    }
    headers = ["input", "mode", "layer", "step, ms", "ratio", "first step, s", "ratio"]
    reductions = [[name, counted[2][name], counted[4][name]] for name in counted[2]]
    write_section(
        "Ghost batch normalization",
        f"{describe_machine()}. Medians of {ROUNDS} interleaved rounds (first steps: "
        f"{FIRST_STEPS}); ratios to Keras' BatchNormalization.\n\n"
        f"{markdown_table(headers, rows)}\n\n"
        "Reductions between replicas that one layer adds to a step, forward and backward:\n\n"
        f"{markdown_table(['layer', '2 replicas', '4 replicas'], reductions)}",
    )


if __name__ == "__main__":
    main()
