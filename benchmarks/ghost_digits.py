"""Digits at batch 1024: plain batch normalization against ghosts of 64, three seeds each.

Run: python benchmarks/ghost_digits.py
"""

import statistics

import keras
from machine import describe_machine, markdown_table, write_section

from tfx_tips.layers import GhostBatchNormalization
from tfx_tips.quickstart import digits

SEEDS, EPOCHS, BATCH = (0, 1, 2), 40, 1024


def train(make_norm, seed):
    """Returns the validation accuracy after the last epoch."""
    keras.utils.set_random_seed(seed)
    (x, y), validation = digits(seed=seed)
    layers = [keras.Input(x.shape[1:])]
    for filters in (16, 32):
        layers += [
            keras.layers.Conv2D(filters, 3, padding="same", use_bias=False),
            make_norm(),
            keras.layers.Activation("relu"),
            keras.layers.MaxPooling2D(),
        ]
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    history = model.fit(
        x, y, batch_size=BATCH, epochs=EPOCHS, validation_data=validation, verbose=0
    )
    return history.history["val_accuracy"][-1]


def main():
    # With momentum 0.99, moving statistics would still be those of the start after 80 steps.
    kinds = {
        "BatchNormalization": lambda: keras.layers.BatchNormalization(momentum=0.9),
        "GhostBatchNormalization(64)": lambda: GhostBatchNormalization(64, momentum=0.9),
        'GhostBatchNormalization(64, moving_variance="ghost")': lambda: GhostBatchNormalization(
            64, momentum=0.9, moving_variance="ghost"
        ),
    }
    rows = []
    for name, make in kinds.items():
        found = [train(make, seed) for seed in SEEDS]
        mean, spread = statistics.mean(found), statistics.stdev(found)
        each = ", ".join(f"{value:.2%}" for value in found)
        rows.append([f"`{name}`", each, f"{mean:.2%}", f"{spread:.2%}"])
        print(*rows[-1], flush=True)
    write_section(
        "Ghosts on digits",
        f"{describe_machine()}. A net of two convolutions on scikit-learn's digits, batch {BATCH}, "
        f"{EPOCHS} epochs, Adam at 0.01, seeds {SEEDS}: validation accuracy at the end. Three "
        "seeds and a few hundred validation examples resolve differences of about a percent.\n\n"
        + markdown_table(["layer", "each seed", "mean", "standard deviation"], rows),
    )


if __name__ == "__main__":
    main()
