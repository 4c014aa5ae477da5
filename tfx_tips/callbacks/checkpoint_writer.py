"""Writing a run's checkpoints, in the background where the model allows it."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras

from tfx_tips._core.background import BackgroundWorker
from tfx_tips._core.ranking import Mode, best_first, quality
from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
from tfx_tips.callbacks.checkpoint_restore import build_optimizer
from tfx_tips.callbacks.checkpoint_store import CheckpointStore
from tfx_tips.callbacks.model_snapshot import (
    ModelSnapshot,
    SnapshotWriter,
    generator_states,
    take_snapshot,
)
from tfx_tips.callbacks.retention import Ranked, ages_to_keep

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Save:
    ranked: Ranked
    snapshot: ModelSnapshot
    fields: Mapping[str, Any]
    must_stay: bool


class CheckpointWriter:
    """Stores what deserves to stay, and removes what no longer does, for one run.

    The best and the latest are counted over all that the directory holds, also from earlier
    runs. Nothing is removed before its successor is whole on the disk.

    Args:
        store: Where checkpoints go; strays are cleaned away.
        model: The model being trained.
        monitor: The metric that ranks.
        mode: Its direction.
        keep: How many of the best stay.
        keep_latest: How many of the newest stay.
        background: Whether a thread writes, so that training waits for a snapshot only.
        weights_only: Whether files hold weights alone.
        writes: Whether this host writes; one that does not only reads the variables.
        several_hosts: Whether other hosts read the model's variables at the same time, so that
            reading must not depend on what this host knows.
    """

    def __init__(
        self,
        store: CheckpointStore,
        model: Any,
        *,
        monitor: str,
        mode: Mode,
        keep: int,
        keep_latest: int,
        background: bool,
        weights_only: bool,
        writes: bool,
        several_hosts: bool,
    ) -> None:
        self._store = store
        self._model = model
        self._monitor = monitor
        self._mode = mode
        self._keep = keep
        self._keep_latest = keep_latest
        self._weights_only = weights_only
        self._suffix = ".weights.h5" if weights_only else ".keras"
        self._writes = writes
        self._several_hosts = several_hosts
        self._lock = threading.Lock()
        self._in_background = background
        self._snapshot_writer: SnapshotWriter | None = None
        self._worker: BackgroundWorker[_Save] = BackgroundWorker(
            self._write_snapshot, name="tfx_tips.checkpoints"
        )
        self._twin_checked = False
        if writes:
            store.clean()
            self._look_whether_storable()
        records = store.records() if writes else []
        self._stored = dict(enumerate(records))
        self._known = {
            age: Ranked(age, record.metrics.get(monitor)) for age, record in self._stored.items()
        }
        self._next_age = len(records)
        if self._in_background and writes and model.built:
            self._make_snapshot_writer()

    @property
    def best(self) -> CheckpointRecord | None:
        """The best checkpoint that is on the disk; None if none has a value that is a number."""
        with self._lock:
            ranked = [
                (age, record.metrics[self._monitor], record)
                for age, record in self._stored.items()
                if self._monitor in record.metrics
            ]
        numbers = [entry for entry in ranked if quality(entry[1], self._mode)[0] < 2]
        best = best_first(numbers, mode=self._mode, value=lambda e: e[1], age=lambda e: e[0])
        return best[0][2] if best else None

    def offer(
        self,
        *,
        value: float | None,
        as_latest: bool,
        fields: Mapping[str, Any],
        must_stay: bool = False,
    ) -> bool:
        """Saves the model as it is now, if that will stay.

        Args:
            value: The monitored metric of exactly these weights, or None.
            as_latest: Whether being the newest is reason enough to save.
            fields: Of the record, as `CheckpointStore.add` takes them.
            must_stay: Whether it stays until the next save, whatever its rank and age.

        Returns:
            Whether it is saved, or will be by the thread.
        """
        if not self._weights_only:
            build_optimizer(self._model)
        ranked = Ranked(self._next_age, value)
        self._next_age += 1
        stays = self._writes and (
            must_stay or self._stays(ranked, among=self._all_known(), as_latest=as_latest)
        )
        if stays and not self._has_snapshot_writer():
            self._save_in_foreground(ranked, fields, must_stay)
        elif stays or self._several_hosts:
            snapshot = take_snapshot(self._model, with_optimizer=not self._weights_only)
            if stays:
                self._hand_over(_Save(ranked, snapshot, fields, must_stay))
        return stays

    def check(self) -> None:
        """Raises what went wrong in the background, if anything did."""
        self._worker.check()

    def flush(self) -> None:
        """Waits until all is on the disk; raises what went wrong."""
        self._worker.flush()

    def _hand_over(self, save: _Save) -> None:
        def replaces(waiting: _Save) -> bool:
            gone = not self._stays(waiting.ranked, among=self._all_known())
            if gone:
                self._forget(waiting.ranked)
            return gone

        # Known before it is handed over: the worker may have failed and forgotten it at once.
        with self._lock:
            self._known[save.ranked.age] = save.ranked
        try:
            self._worker.submit(save, replaces=replaces)
        except BaseException:
            self._forget(save.ranked)
            raise

    def _forget(self, ranked: Ranked) -> None:
        with self._lock:
            self._known.pop(ranked.age, None)

    def _stays(self, ranked: Ranked, *, among: list[Ranked], as_latest: bool = True) -> bool:
        others = [other for other in among if other.age != ranked.age]
        return ranked.age in ages_to_keep(
            [*others, ranked],
            mode=self._mode,
            keep=self._keep,
            keep_latest=self._keep_latest if as_latest else 0,
        )

    def _all_known(self) -> list[Ranked]:
        with self._lock:
            return list(self._known.values())

    def _save_in_foreground(
        self, ranked: Ranked, fields: Mapping[str, Any], must_stay: bool
    ) -> None:
        def write(path: Path) -> None:
            if self._suffix == ".weights.h5":
                self._model.save_weights(path)
            else:
                self._model.save(path)

        generators = generator_states(self._model)
        self._store_and_prune(ranked, write, generators, fields, None, must_stay)

    def _write_snapshot(self, save: _Save) -> None:
        assert self._snapshot_writer is not None
        write = partial(self._snapshot_writer.write, save.snapshot)
        self._store_and_prune(
            save.ranked,
            write,
            save.snapshot.generators,
            save.fields,
            save.snapshot.size_bytes,
            save.must_stay,
        )

    def _store_and_prune(
        self,
        ranked: Ranked,
        write: Any,
        generators: list[dict[str, Any]],
        fields: Mapping[str, Any],
        expected_bytes: int | None,
        must_stay: bool,
    ) -> None:
        with self._lock:
            self._known.setdefault(ranked.age, ranked)
        try:
            record = self._store.add(
                write,
                suffix=self._suffix,
                expected_bytes=expected_bytes,
                monitor=self._monitor,
                mode=self._mode,
                random_generators=generators,
                **fields,
            )
        except BaseException:
            self._forget(ranked)
            raise
        with self._lock:
            self._stored[ranked.age] = record
            stored = [self._known[age] for age in self._stored]
            stay = ages_to_keep(
                stored, mode=self._mode, keep=self._keep, keep_latest=self._keep_latest
            )
            if must_stay:
                stay.add(ranked.age)
            surplus = {age: self._stored[age] for age in self._stored if age not in stay}
        for age, old in surplus.items():
            self._store.remove(old)
            with self._lock:
                del self._stored[age], self._known[age]

    def _look_whether_storable(self) -> None:
        reason = None if self._weights_only else _why_not_storable(self._model)
        if reason is not None:
            # What `save_weights` writes of a compiled model has the optimizer's state, too.
            self._suffix = ".weights.h5"
            self._in_background = False
            _logger.warning(
                "Checkpoints are saved in the foreground, and hold weights and optimizer state "
                "but no model. Keras cannot save %s as a whole: %s",
                type(self._model).__name__,
                reason,
            )

    def _has_snapshot_writer(self) -> bool:
        if self._in_background and self._snapshot_writer is None:
            self._make_snapshot_writer()
        if self._snapshot_writer is not None and not self._twin_checked:
            # Not before the first save: only now is the optimizer built.
            self._twin_checked = True
            self._give_up_unless(partial(self._snapshot_writer.require_alike, self._model))
        return self._snapshot_writer is not None

    def _make_snapshot_writer(self) -> None:
        def make() -> None:
            self._snapshot_writer = SnapshotWriter(self._model, weights_only=self._weights_only)

        self._give_up_unless(make)

    def _give_up_unless(self, attempt: Any) -> None:
        try:
            attempt()
        except ValueError as error:
            self._in_background = False
            self._snapshot_writer = None
            _logger.warning("Checkpoints are saved in the foreground. %s", _one_line(error))


def _why_not_storable(model: Any) -> str | None:
    """Returns why Keras could not save the model as a whole, or None if it can."""
    try:
        keras.saving.serialize_keras_object(model)
    except Exception as error:  # noqa: BLE001 - whatever a `get_config` of the user's own raises
        return _one_line(error)
    return None


def _one_line(error: Exception) -> str:
    """Returns an error's first sentence; Keras adds examples of code to some."""
    text = " ".join(str(error).split())
    return text.split(". ")[0].rstrip(".") + "."
