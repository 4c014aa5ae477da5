"""What a user is told where TensorFlow is needed and missing."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def explain_missing_tensorflow() -> Iterator[None]:
    """Turns a missing TensorFlow into an ImportError that shows the lines which install it.

    Raises:
        ImportError: If TensorFlow is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "tensorflow":
            raise
        raise ImportError(
            "This part of tfx-tips needs TensorFlow, which is not installed. "
            "Install the build that fits the machine:\n"
            "    pip install 'tfx-tips[tensorflow]'   # CPU and NVIDIA GPU\n"
            "    pip install 'tfx-tips[cpu]'          # CPU only, smaller\n"
            "    pip install 'tfx-tips[tpu]'          # TPU",
            name="tensorflow",
        ) from error
