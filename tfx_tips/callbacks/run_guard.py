"""Tells whoever has something open that `fit` has ended, also by an exception.

Keras calls `on_train_end` only where `fit` returns. Threads, an open profiler, pending
saves and a table's row must end in every case. What can be seen from outside is `fit`'s
frame: as long as it is executing, the run goes on.

This file leans on how Keras is built: a frame of a function named `fit`, in a module of
Keras, whose `self` is the model. Checked on Keras 3.10 to 3.15. Where such a frame is not
found (a subclass that overrides `fit` without calling Keras', a loop of the user's own),
`on_train_end`, the instance's next run and the interpreter's exit are what remains.
"""

import atexit
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

# A look takes about a microsecond.
_LOOK_EVERY_S = 0.05


class FitRun:
    """The running `fit` of a model, found on the stack of the thread that asks.

    Args:
        model: The model whose `fit` is looked for.
    """

    def __init__(self, model: Any) -> None:
        self._frame = _find_fit_frame(sys._getframe(1), model)

    @property
    def found(self) -> bool:
        """Whether Keras' `fit` was on the stack."""
        return self._frame is not None

    def is_running(self) -> bool:
        """Returns whether `fit` has not ended yet; True where it was never found.

        May be asked from any thread. Walking another thread's frames may not: they are freed
        and made while it runs, and Python 3.11 crashed on that. Python refuses to clear a frame
        that is still executing, and says so without a look at any other frame. Once `fit` has
        ended, its local variables (the data, the callbacks) are let go of.
        """
        frame = self._frame  # another thread may forget it
        if frame is None:
            return True
        try:
            frame.clear()
        except RuntimeError:
            return True
        return False

    def has_validation_data(self) -> bool:
        """Returns whether `fit` was given validation data of its own; False where unknown."""
        return self._local("validation_data") is not None

    def training_batch_size(self) -> int | None:
        """Returns the (global) batch size of the training data, or None where it cannot be seen.

        Nothing is read for it: a data set that is iterated once more would shuffle otherwise.
        So of a `keras.utils.PyDataset` only an attribute `batch_size` of its own is known.
        """
        adapter = getattr(self._local("epoch_iterator"), "data_adapter", None)
        data = self._local("x")
        for size in (
            getattr(adapter, "batch_size", None),
            getattr(data, "batch_size", None),
            _batch_size_in(data),
        ):
            if isinstance(size, int) and size > 0:
                return size
        return None

    def callbacks(self) -> Sequence[Any]:
        """Returns the callbacks of this run in their order; empty where unknown."""
        return tuple(getattr(self._local("callbacks"), "callbacks", None) or ())

    def forget(self) -> None:
        """Lets go of the frame and all that its local variables hold."""
        self._frame = None

    def _local(self, name: str) -> Any:
        return None if self._frame is None else self._frame.f_locals.get(name)


class RunGuard:
    """Calls `on_end` once when the run is over, however it ended.

    `on_end` runs in the thread that sees the end: the caller of `close`, the watching thread
    where `fit` raised, or the main thread at the interpreter's exit. It must not raise.

    Args:
        model: The model being trained.
        on_end: What to do; told whether the run ended without `close` being called.
    """

    def __init__(self, model: Any, on_end: Callable[[bool], None]) -> None:
        self.run = FitRun(model)
        self._on_end = on_end
        self._lock = threading.Lock()
        self._ended = False
        end_broken_runs()
        _watch(self)

    def close(self) -> None:
        """Says that the run has ended in order; acts at most once, waits for an action begun."""
        self._end(broken=False)

    def end_if_broken(self) -> None:
        """Acts if the run has ended by an exception."""
        if not self.run.is_running():
            self._end(broken=True)

    def end_now(self) -> None:
        """Acts as for a run that ended by an exception: the process is about to exit."""
        self._end(broken=True)

    def _end(self, *, broken: bool) -> None:
        with self._lock:
            if not self._ended:
                self._ended = True
                self._on_end(broken)
                self.run.forget()
        with _watching:
            _open_guards.pop(self, None)


# One thread watches for all guards, and only while there are any. They act in the order of the
# callbacks that made them, so that a later one finds what an earlier one has flushed.
_watching = threading.Condition()
_open_guards: dict[RunGuard, None] = {}
_watcher: threading.Thread | None = None


def _watch(guard: RunGuard) -> None:
    global _watcher
    with _watching:
        _open_guards[guard] = None
        if guard.run.found and (_watcher is None or not _watcher.is_alive()):
            _watcher = threading.Thread(target=_look, name="tfx_tips.run_guard", daemon=True)
            _watcher.start()


def _look() -> None:
    global _watcher
    while True:
        with _watching:
            _watching.wait(_LOOK_EVERY_S)
            guards = list(_open_guards)
            if not guards:
                _watcher = None
                return
        for guard in guards:
            guard.end_if_broken()


def end_broken_runs() -> None:
    """Acts for runs that ended by an exception, without waiting for the watching thread."""
    with _watching:
        guards = list(_open_guards)
    for guard in guards:
        guard.end_if_broken()


@atexit.register
def _end_open_guards() -> None:
    with _watching:
        guards = list(_open_guards)
    for guard in guards:
        guard.end_now()


def _batch_size_in(dataset: Any) -> int | None:
    """Returns the size asked for in `dataset.batch(size)`, which its element spec does not hold.

    Private names of tf.data, there in TensorFlow 2.19 to 2.21; without them it is unknown.
    """
    while dataset is not None:
        if "batch" in type(dataset).__name__.lower():
            size = getattr(dataset, "_batch_size", None)
            return None if size is None else int(size)
        dataset = getattr(dataset, "_input_dataset", None)
    return None


def _find_fit_frame(frame: FrameType | None, model: Any) -> FrameType | None:
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_globals.get("__name__", "").startswith(
            "keras."
        ):
            names = frame.f_locals
            if names.get("self") is model and "epoch_iterator" in names:
                return frame
        frame = frame.f_back
    return None
