"""Trains, evaluates and saves a model with the layer on several replicas.

Run: python fit_on_replicas.py REPLICAS FOLDER [resume]. Prints one line of JSON.
"""

import json
import logging
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tfx_tips.layers import GhostBatchNormalization

logging.getLogger("tensorflow").setLevel("ERROR")


class CountingReduction(tf.distribute.ReductionToOneDevice):
    """Counts the reductions that are traced."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def reduce_implementation(self, *args, **kwargs):
        self.count += 1
        return super().reduce_implementation(*args, **kwargs)


def sorted_data():
    """Returns 18 examples in an order that gives every replica others."""
    x = np.sort(np.random.default_rng(0).normal(size=(18, 3)) * 5, axis=0).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def make_model(**arguments):
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((3,)),
        GhostBatchNormalization(8, momentum=0.5, **arguments),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    return model


def collectives(strategy, counter, layer):
    """Returns how many reductions forward and backward of one layer add to a step."""
    before, calls = counter.count, []

    def one():
        calls.append(1)
        x = tf.ones((4, 3))
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True))
        return tape.gradient(loss, x)

    tf.function(lambda: strategy.run(one)).get_concrete_function()
    traces = len(calls) // strategy.num_replicas_in_sync
    return (counter.count - before) / traces


def main():
    replicas, folder = int(sys.argv[1]), Path(sys.argv[2])
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * replicas,
    )
    counter = CountingReduction()
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)], cross_device_ops=counter
    )
    x, y = sorted_data()
    if "resume" in sys.argv:
        with strategy.scope():
            model = keras.models.load_model(folder / "model.keras")
        steps = int(model.optimizer.iterations.numpy())
        evaluated = model.evaluate(x, y, batch_size=16, verbose=0)
        history = model.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"]
        print(json.dumps({"steps": steps, "evaluated": evaluated, "loss": history[-1]}))
        return

    found = {}
    with warnings.catch_warnings(record=True) as caught, strategy.scope():
        warnings.simplefilter("always")
        model = make_model()
        found["losses"] = model.fit(
            x, y, batch_size=16, epochs=3, shuffle=False, verbose=0
        ).history["loss"]
    found["warnings"] = [str(w.message) for w in caught if "replicas_per_group" in str(w.message)]
    with strategy.scope():
        model = make_model(replicas_per_group="all")
        model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
        model.save(folder / "model.keras")
        model.save_weights(folder / "model.weights.h5")
        found["in strategy"] = model.evaluate(x, y, batch_size=16, verbose=0)
        found["predictions"] = model.predict(x, batch_size=16, verbose=0)[:, 0].tolist()
        moving = model.layers[0].moving_variance.value
        each = [np.asarray(v) for v in strategy.experimental_local_results(moving)]
        found["bitwise"] = all(np.array_equal(each[0], other) for other in each)
        ours = {p: GhostBatchNormalization(8, replicas_per_group=p) for p in (1, 2, "all")}
        theirs = keras.layers.BatchNormalization(synchronized=True)
        for layer in (*ours.values(), theirs):
            layer.build((None, 3))
    found["collectives"] = {str(p): collectives(strategy, counter, ours[p]) for p in ours}
    found["collectives of Keras"] = collectives(strategy, counter, theirs)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
