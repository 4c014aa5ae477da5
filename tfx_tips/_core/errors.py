"""The exceptions that this package adds to Python's own.

Wrong arguments are `ValueError`, missing packages `ImportError`. The rest:

    TfxTipsError
        CheckpointError             a checkpoint directory cannot give what was asked
            NoFiniteMetricError     (also ValueError) all values of the monitored metric are NaN
            DamagedCheckpointError  what is on disk does not match its manifest
        NotEnoughSpaceError         (also OSError) a write did not fit; says bytes needed, free
"""


class TfxTipsError(Exception):
    """Base of the package's own exceptions."""


class CheckpointError(TfxTipsError):
    """A checkpoint directory cannot give what was asked of it."""


class NoFiniteMetricError(CheckpointError, ValueError):
    """No checkpoint has a finite value of the metric that shall choose."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint's file does not match its manifest."""


class NotEnoughSpaceError(TfxTipsError, OSError):
    """A file system had no room for what was to be written."""
