"""Compares the layer on two workers with the oracle; TF_CONFIG says which one this is."""

import json
import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import ghost_oracle
import numpy as np
from ghosts_on_replicas import CHANNELS, distance, local, make_layer, spread

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
for group, splits in ((1, [9, 5]), (2, [9, 5]), (2, [8, 0])):
    rng = np.random.default_rng(0)
    parts = [rng.normal(2, 3, (b, CHANNELS)).astype("float32") for b in splits]
    upstream = [rng.normal(size=part.shape).astype("float32") for part in parts]
    layer = make_layer(strategy, {"virtual_batch_size": 4, "replicas_per_group": group})
    gamma, beta, mean, variance = (np.asarray(w, "float64") for w in layer.get_weights())

    @tf.function
    def run(x, upstream, layer=layer):
        def one(x, upstream):
            with tf.GradientTape() as tape:
                tape.watch(x)
                outputs = layer(x, training=True)
                loss = tf.reduce_sum(outputs * upstream)
            return outputs, tape.gradient(loss, x)

        return strategy.run(one, args=(x, upstream))

    outputs, of_inputs = run(spread(strategy, parts), spread(strategy, upstream))
    exact = [part.astype("float64") for part in parts]
    wanted, measured = ghost_oracle.normalize(exact, 4, p=group, gamma=gamma, beta=beta)
    gradients, *_ = ghost_oracle.gradients(exact, upstream, 4, gamma=gamma, beta=beta, p=group)
    to_mean, to_variance = ghost_oracle.batch_statistics(measured)
    found = {
        "group": group,
        "outputs": distance(local(strategy, outputs)[0], wanted[index]),
        "inputs": distance(local(strategy, of_inputs)[0], gradients[index]),
        "mean": distance(np.asarray(layer.moving_mean), (mean + to_mean) / 2),
        "variance": distance(np.asarray(layer.moving_variance), (variance + to_variance) / 2),
        "bytes": np.asarray(layer.moving_variance).tobytes().hex(),
    }
    print(json.dumps(found), flush=True)
