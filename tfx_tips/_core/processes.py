"""Which process wrote something, and whether that process is gone."""

import os
import socket
from dataclasses import dataclass

import psutil

# The operating system counts a process's start from the machine's start, whose own time is
# known to a second and moves a little as the clock is corrected.
_SAME_START_S = 2.0


@dataclass(frozen=True)
class ProcessIdentity:
    """A process of a host. Its number alone would not do: numbers are used again.

    Attributes:
        host: The host's name.
        pid: The process's number on that host.
        started: When it started, in seconds since 1970.
    """

    host: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """Returns this process's identity."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, psutil.Process(pid).create_time())

    def is_gone(self) -> bool:
        """Returns whether the process has surely ended; False for one on another host."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            # A killed process stays listed until its parent asks how it ended.
            return (
                abs(process.create_time() - self.started) > _SAME_START_S
                or process.status() == psutil.STATUS_ZOMBIE
            )
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False
