"""One worker thread whose errors surface in its caller."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class BackgroundWorker(Generic[Job]):
    """Handles jobs one after the other in a thread; at most one job waits.

    An exception of the handler is raised in the caller at the next `submit`, `check` or
    `flush`, once; if several jobs failed before, the first one's, with a note on the others.
    The thread is started by the first job and is a daemon: `flush` before
    the process ends.

    Args:
        handle: Called in the thread with each job.
        name: The thread's name.
    """

    def __init__(self, handle: Callable[[Job], None], *, name: str) -> None:
        self._handle = handle
        self._name = name
        self._condition = threading.Condition()
        self._waiting: Job | None = None
        self._running = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def submit(self, job: Job, *, replaces: Callable[[Job], bool] = lambda waiting: False) -> None:
        """Hands a job over; blocks only while another one waits that it does not replace.

        Where it raises, the job was not taken.

        Args:
            job: What the handler gets.
            replaces: Told the job that is still waiting; True drops that one.

        Raises:
            BaseException: What an earlier job raised.
        """
        with self._condition:
            self._raise_error()
            while self._waiting is not None and not replaces(self._waiting):
                self._condition.wait()
                self._raise_error()
            self._waiting = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def check(self) -> None:
        """Raises what an earlier job raised, if anything did; takes no lock otherwise."""
        if self._error is not None:
            with self._condition:
                self._raise_error()

    def flush(self) -> None:
        """Waits until nothing waits or runs, ends the thread, raises what a job raised."""
        with self._condition:
            while self._waiting is not None or self._running:
                self._condition.wait()
            thread, self._thread = self._thread, None
            self._condition.notify_all()
        if thread is not None:
            thread.join()
        with self._condition:
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        this = threading.current_thread()
        while True:
            with self._condition:
                while self._waiting is None:
                    if self._thread is not this:
                        return
                    self._condition.wait()
                job, self._waiting = self._waiting, None
                self._running = True
                self._condition.notify_all()
            try:
                self._handle(job)
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                with self._condition:
                    if self._error is None:
                        self._error = error
                    else:
                        self._error.add_note(f"A later job failed, too: {error!r}")
            finally:
                # Drop the job before anyone is told: it may hold a copy of the weights.
                del job
                with self._condition:
                    self._running = False
                    self._condition.notify_all()
