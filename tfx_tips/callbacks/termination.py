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


class TerminationRequest:
    """Notes a SIGTERM in place of dying from it, while a run is open.

    Python delivers signals to the main thread alone; elsewhere nothing is installed and
    one line is logged.

    Args:
        is_open: Tells whether the run that could answer is still going on.
    """

    def __init__(self, is_open: Callable[[], bool]) -> None:
        self.received = False
        self._is_open = is_open
        self._previous: Any = None
        self._installed = False

    def install(self) -> None:
        """Takes the signal over."""
        self.received = False
        if self._installed:
            return
        if threading.current_thread() is not threading.main_thread():
            _logger.info("SIGTERM is not handled: `fit` runs outside the main thread.")
            return
        self._previous = signal.signal(signal.SIGTERM, self._handle)
        self._installed = True

    def restore(self) -> None:
        """Puts the old handler back, if this is the main thread and ours is still in place."""
        in_main = threading.current_thread() is threading.main_thread()
        if self._installed and in_main:
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
            self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_open():
            self.received = True
            return
        # The run ended by an exception, so nobody was there to put the old handler back.
        self.restore()
        os.kill(os.getpid(), signal.SIGTERM)
