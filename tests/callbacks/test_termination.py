"""SIGTERM noted while a run is open, and the old handler afterwards."""

import logging
import os
import signal
import threading

import pytest

from tfx_tips.callbacks.termination import EXIT_STATUS, TerminationRequest


@pytest.fixture
def delivered():
    """The signals that this process' own handler saw; it stands for the user's."""
    seen = []

    def handler(number, frame):
        seen.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    yield seen
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def users(delivered):
    return signal.getsignal(signal.SIGTERM)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


class Run:
    def __init__(self):
        self.open = True
        self.request = TerminationRequest(is_open=lambda: self.open)
        self.request.install()


def test_the_status_is_what_shells_report():
    assert EXIT_STATUS == 143


def test_an_open_run_notes_the_signal_and_the_old_handler_does_not_see_it(delivered):
    run = Run()
    assert not run.request.received
    terminate()
    assert run.request.received
    assert delivered == []
    run.request.restore()


def test_restoring_puts_the_old_handler_back(delivered, users):
    run = Run()
    assert signal.getsignal(signal.SIGTERM) is not users
    run.request.restore()
    run.request.restore()
    assert signal.getsignal(signal.SIGTERM) is users
    terminate()
    assert delivered == [signal.SIGTERM]
    assert not run.request.received


def test_after_a_run_that_nobody_closed_the_old_handler_gets_the_signal(delivered, users):
    run = Run()
    run.open = False
    terminate()
    assert delivered == [signal.SIGTERM]
    assert not run.request.received
    assert signal.getsignal(signal.SIGTERM) is users


def test_installing_again_forgets_an_earlier_signal_and_the_first_handler_stays_the_old(users):
    run = Run()
    terminate()
    run.request.install()
    assert not run.request.received
    run.request.restore()
    assert signal.getsignal(signal.SIGTERM) is users


@pytest.mark.parametrize("first_closed", [0, 1])
def test_two_open_runs_both_note_it_and_any_order_of_closing_restores(
    delivered, users, first_closed
):
    runs = [Run(), Run()]
    terminate()
    assert [run.request.received for run in runs] == [True, True]
    for run in (runs[first_closed], runs[1 - first_closed]):
        run.open = False
        run.request.restore()
    assert signal.getsignal(signal.SIGTERM) is users
    terminate()
    assert delivered == [signal.SIGTERM]


def test_a_run_that_nobody_closed_does_not_keep_a_later_one_from_restoring(users):
    broken, later = Run(), None
    broken.open = False
    later = Run()
    later.open = False
    later.request.restore()
    assert signal.getsignal(signal.SIGTERM) is users


def test_a_handler_that_the_user_installed_meanwhile_stays(users):
    run = Run()

    def newer(number, frame):
        pass

    signal.signal(signal.SIGTERM, newer)
    run.request.restore()
    assert signal.getsignal(signal.SIGTERM) is newer


def test_the_default_action_is_put_back_too(users):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    run = Run()
    run.request.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_outside_the_main_thread_nothing_is_installed_and_one_line_says_so(users, caplog):
    def work():
        run = Run()
        run.request.restore()

    with caplog.at_level(logging.INFO, logger="tfx_tips"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert signal.getsignal(signal.SIGTERM) is users
    (line,) = caplog.records
    assert line.getMessage() == "SIGTERM is not handled: `fit` runs outside the main thread."
