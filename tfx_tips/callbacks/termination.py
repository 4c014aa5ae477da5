"""SIGTERM during training, answered after the step."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# What a shell reports for a process that SIGTERM ended.
EXIT_STATUS = 128 + signal.SIGTERM

_logger = logging.getLogger(__name__)

# The handler is one for the process: several requests that each put back what they found
# would put back one another's. Touched in the main thread alone.
_installed: list["TerminationRequest"] = []
_previous: Any = None


class TerminationRequest:
    """Notes a SIGTERM in place of dying from it, while a run is open.

    Python delivers signals to the main thread alone; elsewhere nothing is installed and
    one line is logged.

    Args:
        is_open: Tells whether the run that could answer is still going on.
    """

    def __init__(self, is_open: Callable[[], bool]) -> None:
        self.received = False
        self.is_open = is_open

    def install(self) -> None:
        """Takes the signal over."""
        global _previous
        self.received = False
        if threading.current_thread() is not threading.main_thread():
            _logger.info("SIGTERM is not handled: `fit` runs outside the main thread.")
            return
        if signal.getsignal(signal.SIGTERM) is not _handle:
            _previous = signal.signal(signal.SIGTERM, _handle)
        if self not in _installed:
            _installed.append(self)

    def restore(self) -> None:
        """Puts the old handler back once no request needs ours, if ours is still in place."""
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and self in _installed:
            _installed.remove(self)
            if not any(request.is_open() for request in _installed):
                _put_back()


def _put_back() -> None:
    _installed.clear()
    if signal.getsignal(signal.SIGTERM) is _handle:
        # None stands for a handler that was not installed from Python.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if _previous is None else _previous)


def _handle(number: int, frame: FrameType | None) -> None:
    answering = [request for request in _installed if request.is_open()]
    for request in answering:
        request.received = True
    if not answering:
        # The runs ended by exceptions, so nobody was there to put the old handler back.
        _put_back()
        os.kill(os.getpid(), signal.SIGTERM)
