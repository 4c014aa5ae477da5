"""Settings that must be made before anything touches TensorFlow's devices."""

import os
import sys

import pytest

LOGICAL_DEVICES = 4

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
# Tests that want a cluster describe one themselves.
os.environ.pop("TF_CONFIG", None)


def pytest_collection_modifyitems():
    """Splits the CPU into logical devices, in processes whose tests use TensorFlow at all."""
    if "keras" in sys.modules or "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES,
        )


@pytest.fixture
def rng():
    """NumPy's generator with a fixed seed."""
    import numpy as np

    return np.random.default_rng(0)
