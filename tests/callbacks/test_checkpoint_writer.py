"""What is written and removed for a run, against brute force and the disk."""

import errno
import functools
import json
import logging
import math
import random
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from tfx_tips._core.errors import NotEnoughSpaceError
from tfx_tips.callbacks.checkpoint_restore import restore_best
from tfx_tips.callbacks.checkpoint_store import CheckpointStore
from tfx_tips.callbacks.checkpoint_writer import CheckpointWriter

WAIT_S = 30


class Subclass(keras.Model):
    """Keras cannot make a second one: it does not know what `layer` was."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)


class Store(CheckpointStore):
    """A real store whose `add` can be held up, made to fail, and is counted."""

    def __init__(self, directory):
        super().__init__(directory)
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.errors = []
        self.added = []

    def add(self, write, *, step, **fields):
        self.entered.release()
        assert self.gate.wait(WAIT_S)
        if self.errors:
            raise self.errors.pop(0)
        record = super().add(write, step=step, **fields)
        self.added.append(step)
        return record


@pytest.fixture(scope="module")
def model():
    """A model whose one weight tells which step it was saved at."""
    model = keras.Sequential([layers.Input((1,)), layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "ckpt")


def writer(store, model, **settings):
    return CheckpointWriter(
        store,
        model,
        **{
            "monitor": "val_loss",
            "mode": "min",
            "keep": 2,
            "keep_latest": 0,
            "background": True,
            "weights_only": False,
            "writes": True,
            "several_hosts": False,
            **settings,
        },
    )


def offer(writer, model, step, value, *, as_latest=True):
    model.set_weights([np.full((1, 1), step)])
    writer.offer(
        value=value,
        as_latest=as_latest,
        fields={
            "step": step,
            "epoch": 0,
            "batch": step,
            "metrics": {} if value is None else {"val_loss": value},
        },
    )


def on_disk(store):
    """Step and value of each whole checkpoint, by plain json; the files must be all there is."""
    found = []
    folder = Path(store.directory)
    files = {path.name for path in folder.glob("*")}
    for name in sorted(files):
        if name.endswith(".json"):
            values = json.loads((folder / name).read_text())
            files = files - {name, values["file"]}
            weights = _weight(folder / values["file"])
            assert weights == values["step"], "holds the weights of another step"
            found.append((values["step"], values["metrics"].get("val_loss")))
    assert not files
    return found


def _weight(path):
    if path.name.endswith(".weights.h5"):
        fresh = keras.Sequential([layers.Input((1,)), layers.Dense(1, use_bias=False)])
        fresh.load_weights(path)
    else:
        fresh = keras.models.load_model(path)
    return float(fresh.get_weights()[0][0, 0])


def expected_steps(values, *, mode, keep, keep_latest):
    """Brute force over all the values that there ever were, by step from 1."""
    steps = range(1, len(values) + 1)
    valued = [step for step in steps if values[step - 1] is not None]
    finite = [step for step in valued if math.isfinite(values[step - 1])]
    infinite = [step for step in valued if math.isinf(values[step - 1])]
    group = finite or infinite or valued
    sign = 1 if mode == "min" else -1

    def key(step):
        value = values[step - 1]
        return (0 if math.isnan(value) else sign * value, step)

    return set(sorted(group, key=key)[:keep]) | set(list(steps)[len(values) - keep_latest :])


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_disk_holds_the_best_of_all_and_the_latest_also_after_restarts(
    seed, background, model, tmp_path
):
    draw = random.Random(seed)
    mode, keep, keep_latest = draw.choice(["min", "max"]), draw.randint(1, 3), seed
    store, values = Store(tmp_path / "ckpt"), []
    settings = {"mode": mode, "keep": keep, "keep_latest": keep_latest, "background": background}
    for _ in range(3):  # restarts
        run = writer(store, model, **settings)
        for _ in range(4):
            values.append(draw.choice([0.5, 0.5, 1.0, 2.0, -1.0, math.nan, math.inf, -math.inf]))
            offer(run, model, len(values), values[-1])
            if draw.random() < 0.5:
                run.flush()
        run.flush()
        kept = {step for step, _ in on_disk(store)}
        wanted = expected_steps(values, mode=mode, keep=keep, keep_latest=keep_latest)
        assert kept == wanted, (values, mode, keep, keep_latest)


def test_what_would_not_stay_is_not_written(store, model):
    run = writer(store, model, keep=2)
    for step, value in enumerate((0.1, 0.2, 0.3, 0.2, math.nan, math.inf, 0.15), start=1):
        offer(run, model, step, value)
        run.flush()
    assert store.added == [1, 2, 7]
    assert on_disk(store) == [(1, 0.1), (7, 0.15)]


def test_equal_steps_of_another_run_do_not_replace_one_another(store, model):
    for value in (0.5, 0.4):
        run = writer(store, model, keep=3)
        offer(run, model, 4, value)
        run.flush()
    assert sorted(on_disk(store)) == [(4, 0.4), (4, 0.5)]


def test_a_timed_checkpoint_without_a_value_is_the_latest_and_never_the_best(store, model):
    run = writer(store, model, keep=1, keep_latest=1)
    offer(run, model, 1, 0.5)
    offer(run, model, 2, None)
    run.flush()
    assert on_disk(store) == [(1, 0.5), (2, None)]
    assert run.best.step == 1
    offer(run, model, 3, None)
    run.flush()
    assert on_disk(store) == [(1, 0.5), (3, None)]


def test_an_evaluation_that_is_not_timed_is_saved_only_among_the_best(store, model):
    run = writer(store, model, keep=1, keep_latest=1)
    offer(run, model, 1, 0.5, as_latest=False)
    offer(run, model, 2, 0.9, as_latest=False)
    run.flush()
    assert on_disk(store) == [(1, 0.5)]


class TestBest:
    def test_is_the_best_number_on_the_disk_and_not_what_is_pending(self, store, model):
        run = writer(store, model)
        assert run.best is None
        offer(run, model, 1, math.nan)
        run.flush()
        assert run.best is None
        offer(run, model, 2, 0.5)
        run.flush()
        store.gate.clear()
        offer(run, model, 3, 0.1)
        assert run.best.step == 2
        store.gate.set()
        run.flush()
        assert run.best.step == 3

    def test_counts_what_the_directory_held(self, store, model):
        run = writer(store, model)
        offer(run, model, 1, 0.5)
        run.flush()
        assert writer(store, model).best.step == 1


class TestPending:
    def hold_first(self, store, model, run):
        """One save is being written; returns when it is."""
        store.gate.clear()
        offer(run, model, 1, 0.5)
        assert store.entered.acquire(timeout=WAIT_S)

    def test_a_waiting_save_is_replaced_when_it_would_no_longer_stay(self, store, model):
        run = writer(store, model, keep=2)
        self.hold_first(store, model, run)
        offer(run, model, 2, 0.9)
        offer(run, model, 3, 0.4)  # returns at once: 2 is no longer among the two best
        store.gate.set()
        run.flush()
        assert store.added == [1, 3]
        assert on_disk(store) == [(1, 0.5), (3, 0.4)]

    def test_a_waiting_latest_is_replaced_by_a_newer_one(self, store, model):
        run = writer(store, model, keep=1, keep_latest=1)
        self.hold_first(store, model, run)
        for step in range(2, 6):
            offer(run, model, step, None)
        store.gate.set()
        run.flush()
        assert store.added == [1, 5]

    def test_a_waiting_save_that_will_stay_is_waited_for(self, store, model):
        run = writer(store, model, keep=3)
        self.hold_first(store, model, run)
        offer(run, model, 2, 0.4)
        third = threading.Thread(target=offer, args=(run, model, 3, 0.3))
        third.start()
        third.join(0.2)
        assert third.is_alive()  # at most one waits
        store.gate.set()
        third.join(WAIT_S)
        run.flush()
        assert store.added == [1, 2, 3]

    def test_what_is_not_better_than_what_is_pending_is_not_submitted(self, store, model):
        run = writer(store, model, keep=1)
        self.hold_first(store, model, run)
        offer(run, model, 2, 0.6)
        store.gate.set()
        run.flush()
        assert store.added == [1]


class TestErrors:
    @pytest.fixture
    def full(self):
        return NotEnoughSpaceError(errno.ENOSPC, "Not enough space: 7 bytes are needed")

    def test_surface_at_the_next_check_once_and_lose_nothing(self, store, model, full):
        run = writer(store, model)
        offer(run, model, 1, 0.5)
        run.flush()
        store.errors.append(full)
        offer(run, model, 2, 0.4)
        with pytest.raises(NotEnoughSpaceError, match="7 bytes are needed"):
            run.flush()
        run.check()
        assert on_disk(store) == [(1, 0.5)]

    def test_a_failed_save_does_not_stand_in_the_way_of_a_worse_one(self, store, model, full):
        run = writer(store, model, keep=1)
        for step in range(1, 21):
            store.errors.append(full)
            offer(run, model, step, 0.1)
            with pytest.raises(NotEnoughSpaceError):
                run.flush()
        offer(run, model, 21, 0.9)
        run.flush()
        assert on_disk(store) == [(21, 0.9)]

    def test_in_the_foreground_they_surface_at_once(self, store, model, full):
        run = writer(store, model, background=False, keep=1)
        store.errors.append(full)
        with pytest.raises(NotEnoughSpaceError):
            offer(run, model, 1, 0.1)
        offer(run, model, 2, 0.9)
        assert on_disk(store) == [(2, 0.9)]

    def test_one_that_was_not_removed_is_removed_next_time(self, store, model):
        run = writer(store, model, keep=1)
        offer(run, model, 1, 0.5)
        run.flush()
        remove = store.remove

        def refuse(record):
            raise PermissionError("read-only")

        store.remove = refuse
        offer(run, model, 2, 0.4)
        with pytest.raises(PermissionError):
            run.flush()
        assert on_disk(store) == [(1, 0.5), (2, 0.4)]
        store.remove = remove
        offer(run, model, 3, 0.3)
        run.flush()
        assert on_disk(store) == [(3, 0.3)]


class TestForeground:
    def test_a_model_that_keras_cannot_save_is_stored_with_one_log_line(self, store, caplog):
        def subclass():
            model = Subclass(layers.Dense(1, use_bias=False))
            model.compile("adam", "mse")
            model(np.zeros((1, 1), "float32"))
            return model

        model = subclass()
        model.optimizer.build(model.trainable_variables)
        with caplog.at_level(logging.INFO):
            run = writer(store, model, keep=3)
            for step in (1, 2, 3):
                model.optimizer.variables[2].assign(np.full((1, 1), step))
                offer(run, model, step, 1 / step)
        (line,) = caplog.records
        message = line.getMessage()
        assert message.startswith("Checkpoints are saved in the foreground")
        assert "Subclass" in message
        assert "\n" not in message
        assert [record.step for record in store.records()] == [1, 2, 3]
        assert "tfx_tips.checkpoints" not in {thread.name for thread in threading.enumerate()}
        fresh = subclass()
        assert restore_best(fresh, store.directory, monitor="val_loss").step == 3
        assert fresh.get_weights()[0] == [[3.0]]
        assert fresh.optimizer.variables[2].numpy() == [[3.0]]

    def test_saving_weights_alone_stores_no_optimizer(self, store, model):
        for background in (True, False):
            run = writer(store, model, weights_only=True, background=background, keep=9)
            offer(run, model, 1 + background, 0.5)
            run.flush()
        assert on_disk(store) == [(1, 0.5), (2, 0.5)]
        assert all(record.weights_only for record in store.records())

    def test_what_it_was_compiled_with_cannot_be_stored_either(self, store, caplog):
        model = keras.Sequential([layers.Input((1,)), layers.Dense(1, use_bias=False)])
        model.compile("sgd", functools.partial(keras.losses.huber, delta=2.0))
        run = writer(store, model)
        offer(run, model, 1, 0.5)
        (line,) = caplog.records
        assert "Keras cannot save Sequential as a whole: Cannot serialize obj" in line.getMessage()
        assert [record.weights_only for record in store.records()] == [True]


def test_a_host_that_does_not_write_only_reads(store, model, tmp_path):
    run = writer(store, model, writes=False, several_hosts=True)
    offer(run, model, 1, 0.5)
    run.flush()
    assert run.best is None
    assert list(tmp_path.iterdir()) == []


def test_strays_of_a_killed_writer_are_cleaned_at_the_start(store, model, tmp_path):
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "step-00000003.keras").write_bytes(b"half")
    writer(store, model)
    assert list((tmp_path / "ckpt").iterdir()) == []
