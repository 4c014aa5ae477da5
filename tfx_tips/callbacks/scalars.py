"""Scalars that TensorBoard shows, written without TensorBoard being installed."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

# What TensorBoard's scalar dashboard looks for in an event file.
_SCALARS = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
)


class ScalarWriter:
    """Writes scalars by optimizer step into an event file below `log_dir`.

    The file is made at the first write. Only the chief host should write.

    Args:
        log_dir: The folder that TensorBoard is pointed at; created if missing.
    """

    def __init__(self, log_dir: str | Path) -> None:
        self._log_dir = str(log_dir)
        self._writer: tf.summary.SummaryWriter | None = None

    def write(self, scalars: Mapping[str, float], *, step: int) -> None:
        """Writes each scalar under its name and flushes the file."""
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._log_dir)
        with self._writer.as_default(), tf.summary.record_if(True):
            for name, value in scalars.items():
                tf.summary.write(name, tf.constant(value, tf.float32), step=step, metadata=_SCALARS)
        self._writer.flush()

    def close(self) -> None:
        """Closes the file; a later write starts another one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
