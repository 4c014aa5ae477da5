import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tfx_tips._core.processes import ProcessIdentity


@pytest.fixture
def sleeper():
    """A process that waits until it is told to end, and says who it is."""
    code = (
        "import sys\n"
        "from tfx_tips._core.processes import ProcessIdentity\n"
        "me = ProcessIdentity.current()\n"
        "print(me.host, me.pid, repr(me.started), flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    host, pid, started = process.stdout.readline().split()
    yield process, ProcessIdentity(host, int(pid), float(started))
    process.kill()
    process.communicate()


def test_knows_this_process():
    me = ProcessIdentity.current()
    assert (me.host, me.pid) == (socket.gethostname(), os.getpid())
    assert time.time() - 24 * 3600 < me.started <= time.time()
    assert not me.is_gone()


def test_a_living_process_is_not_gone(sleeper):
    process, identity = sleeper
    assert identity.pid == process.pid
    assert not identity.is_gone()


def test_a_killed_process_is_gone_before_and_after_its_parent_asks(sleeper):
    process, identity = sleeper
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # leaves the zombie
    assert identity.is_gone()
    process.wait()
    assert identity.is_gone()


def test_a_process_number_that_was_used_again_is_another_process(sleeper):
    _, identity = sleeper
    assert dataclasses.replace(identity, started=identity.started - 60).is_gone()


def test_a_process_of_another_host_is_never_said_to_be_gone():
    assert not ProcessIdentity("no-such-host.invalid", 2**30, 0.0).is_gone()
