"""Runs the layer on Keras' JAX backend; KERAS_BACKEND says so. Prints one line of JSON."""

import json
import sys

import ghost_oracle
import jax
import keras
import numpy as np

from tfx_tips.layers import GhostBatchNormalization, convert_batch_norm

found = {"backend": keras.backend.backend(), "tensorflow": "tensorflow" in sys.modules}
rng = np.random.default_rng(0)
for name, shape, mask, subsample in (
    ("even", (16, 3), None, False),
    ("uneven", (9, 2, 3), None, False),
    ("masked", (9, 2, 3), rng.random((9, 2)) < 0.6, False),
    ("subsample", (9, 3), None, True),
):
    x = rng.normal(2, 3, shape).astype("float32")
    upstream = rng.normal(size=shape).astype("float32")
    layer = GhostBatchNormalization(
        4, momentum=0.0, statistics="subsample" if subsample else "split"
    )
    layer.build(shape)
    state = [v.value for v in layer.non_trainable_variables]

    @jax.jit
    def step(x, trainable, layer=layer, state=state, upstream=upstream, mask=mask):
        def loss(x, trainable):
            call = {"training": True, "mask": mask}
            outputs, after = layer.stateless_call(trainable, state, x, **call)
            return (outputs * upstream).sum(), (outputs, after)

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, trainable)

    (_, (outputs, after)), gradients = step(x, [v.value for v in layer.trainable_variables])
    exact = [x.astype("float64")]
    options = {"masks": [mask], "subsample": subsample}
    (wanted,), measured = ghost_oracle.normalize(exact, 4, **options)
    known = ~np.isnan(wanted)
    errors = [np.abs(outputs - wanted)[known].max()]
    wanted_state = ghost_oracle.batch_statistics(measured)
    errors += [np.abs(a - b).max() for a, b in zip(after, wanted_state, strict=True)]
    if mask is None:
        one, zero = np.ones(3), np.zeros(3)
        (inputs,), gamma, beta = ghost_oracle.gradients(
            exact, [upstream], 4, gamma=one, beta=zero, **options
        )
        pairs = zip((gradients[0], *gradients[1]), (inputs, gamma, beta), strict=True)
        errors += [np.abs(a - b).max() for a, b in pairs]
    found[name] = float(max(errors))

model = keras.Sequential(
    [keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
)
converted = convert_batch_norm(model, 4)
converted.compile("sgd", "mse")
x = rng.normal(size=(10, 3)).astype("float32")
history = converted.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0).history
found["losses"] = history["loss"]
try:
    GhostBatchNormalization(4, replicas_per_group=2)(x, training=True)
except ValueError as error:
    found["error"] = str(error)
print(json.dumps(found))
