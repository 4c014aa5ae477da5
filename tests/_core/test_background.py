"""The worker thread: order, errors, replacement, and what it lets go of."""

import threading
import weakref

import pytest

from tfx_tips._core.background import BackgroundWorker

TIMEOUT_S = 30
NAME = "tfx_tips.test_worker"


class Handler:
    """Handles jobs one by one as the test lets it, and notes them."""

    def __init__(self, *, open_gate=True):
        self.handled = []
        self.threads = []
        self.started = threading.Semaphore(0)
        self.gate = threading.Event()
        if open_gate:
            self.gate.set()

    def __call__(self, job):
        self.threads.append(threading.current_thread())
        self.started.release()
        assert self.gate.wait(TIMEOUT_S)
        if isinstance(job, BaseException):
            raise job
        self.handled.append(job)

    def wait_for_start(self):
        assert self.started.acquire(timeout=TIMEOUT_S)


def threads_of_worker():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def make_worker():
    """Makes workers, and ends their threads after the test."""
    made = []

    def make(handler):
        made.append((BackgroundWorker(handler, name=NAME), handler))
        return made[-1][0]

    yield make
    for worker, handler in made:
        handler.gate.set()
        worker.flush()
    assert threads_of_worker() == []


def test_jobs_are_handled_in_the_order_they_came_and_one_at_a_time(make_worker):
    handler = Handler()
    worker = make_worker(handler)

    for job in range(200):
        worker.submit(job)
    worker.flush()

    assert handler.handled == list(range(200))


def test_jobs_run_in_one_other_thread(make_worker):
    handler = Handler()
    worker = make_worker(handler)

    worker.submit(1)
    worker.submit(2)
    worker.flush()

    assert len(handler.threads) == 2
    (thread,) = set(handler.threads)
    assert thread is not threading.current_thread()
    assert thread.daemon


def test_no_thread_before_the_first_job_nor_after_a_flush(make_worker):
    worker = make_worker(Handler())
    assert threads_of_worker() == []

    worker.submit(1)
    assert len(threads_of_worker()) == 1

    worker.flush()
    assert threads_of_worker() == []


def test_worker_takes_jobs_again_after_a_flush(make_worker):
    handler = Handler()
    worker = make_worker(handler)

    for job in (1, 2, 3):
        worker.submit(job)
        worker.flush()

    assert handler.handled == [1, 2, 3]


def test_submit_does_not_wait_for_the_running_job(make_worker):
    handler = Handler(open_gate=False)
    worker = make_worker(handler)

    worker.submit("running")
    handler.wait_for_start()
    worker.submit("waiting")

    assert handler.handled == []


def test_submit_blocks_while_another_job_waits(make_worker):
    handler = Handler(open_gate=False)
    worker = make_worker(handler)
    worker.submit("running")
    handler.wait_for_start()
    worker.submit("waiting")
    returned = threading.Event()

    def submit_third():
        worker.submit("third")
        returned.set()

    caller = threading.Thread(target=submit_third)
    caller.start()
    assert not returned.wait(0.1)

    handler.gate.set()
    assert returned.wait(TIMEOUT_S)
    caller.join()
    worker.flush()
    assert handler.handled == ["running", "waiting", "third"]


def test_newer_job_replaces_the_waiting_one_where_it_says_so(make_worker):
    handler = Handler(open_gate=False)
    worker = make_worker(handler)
    asked = []

    worker.submit("running")
    handler.wait_for_start()
    worker.submit("waiting")
    worker.submit("newer", replaces=lambda waiting: asked.append(waiting) or True)
    handler.gate.set()
    worker.flush()

    assert handler.handled == ["running", "newer"]
    assert asked == ["waiting"]


def test_running_job_is_never_replaced(make_worker):
    handler = Handler(open_gate=False)
    worker = make_worker(handler)

    worker.submit("running")
    handler.wait_for_start()
    worker.submit("newer", replaces=lambda waiting: True)
    handler.gate.set()
    worker.flush()

    assert handler.handled == ["running", "newer"]


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(28, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["submit", "check", "flush"])
def test_error_of_a_job_is_raised_once_in_the_caller(make_worker, call, error):
    handler = Handler()
    worker = make_worker(handler)
    worker.submit(error)
    wait_until_idle(worker)

    with pytest.raises(type(error)) as caught:
        worker.submit("next") if call == "submit" else getattr(worker, call)()

    assert caught.value is error
    worker.check()
    worker.submit("after")
    worker.flush()
    assert handler.handled == ["after"]


def test_flush_after_an_error_ends_the_thread_all_the_same(make_worker):
    worker = make_worker(Handler())
    worker.submit(ValueError("bad"))

    with pytest.raises(ValueError, match="bad"):
        worker.flush()

    assert threads_of_worker() == []


def test_job_that_waits_behind_a_failing_one_is_still_handled(make_worker):
    handler = Handler(open_gate=False)
    worker = make_worker(handler)
    worker.submit(ValueError("bad"))
    handler.wait_for_start()
    worker.submit("waiting")
    handler.gate.set()

    with pytest.raises(ValueError, match="bad"):
        worker.flush()

    assert handler.handled == ["waiting"]


def test_of_two_errors_the_first_is_raised_and_names_the_second(make_worker):
    handler = Handler(open_gate=False)
    worker = make_worker(handler)
    worker.submit(ValueError("first"))
    handler.wait_for_start()
    worker.submit(OSError("second"))
    handler.gate.set()

    with pytest.raises(ValueError, match="first") as caught:
        worker.flush()

    assert caught.value.__notes__ == ["A later job failed, too: OSError('second')"]
    worker.check()


def test_blocked_submit_raises_when_the_running_job_fails(make_worker):
    handler = Handler(open_gate=False)
    worker = make_worker(handler)
    worker.submit(ValueError("bad"))
    handler.wait_for_start()
    worker.submit("waiting")
    caught = []

    def submit_third():
        try:
            worker.submit("third")
        except ValueError as error:
            caught.append(error)

    caller = threading.Thread(target=submit_third)
    caller.start()
    handler.gate.set()
    caller.join(TIMEOUT_S)
    worker.flush()

    assert [str(error) for error in caught] == ["bad"]
    assert handler.handled == ["waiting"]


class Weights:
    """Stands for a copy of a model's weights that a job holds."""


class HandlerThatForgets:
    """Handles jobs and keeps nothing of them."""

    def __init__(self):
        self.gate = threading.Event()
        self.count = 0

    def __call__(self, job):
        self.count += 1


def test_what_a_finished_job_held_is_released_when_flush_returns(make_worker):
    handler = HandlerThatForgets()
    worker = make_worker(handler)
    weights = Weights()
    alive = weakref.ref(weights)

    worker.submit(weights)
    del weights
    worker.flush()

    assert handler.count == 1
    assert alive() is None


def test_what_a_finished_job_held_is_released_while_the_thread_waits(make_worker):
    handler = HandlerThatForgets()
    worker = make_worker(handler)
    weights = Weights()
    alive = weakref.ref(weights)

    worker.submit(weights)
    del weights
    wait_until_idle(worker)

    assert len(threads_of_worker()) == 1
    assert alive() is None


def test_what_a_replaced_job_held_is_released_at_once(make_worker):
    handler = Handler(open_gate=False)
    worker = make_worker(handler)
    weights = Weights()
    alive = weakref.ref(weights)

    worker.submit("running")
    handler.wait_for_start()
    worker.submit(weights)
    del weights
    worker.submit("newer", replaces=lambda waiting: True)

    assert alive() is None


def wait_until_idle(worker):
    """Returns when nothing waits or runs, without raising what a job raised."""
    with worker._condition:
        assert worker._condition.wait_for(
            lambda: worker._waiting is None and not worker._running, TIMEOUT_S
        )
