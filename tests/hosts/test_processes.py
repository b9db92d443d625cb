"""The sets of worker processes do what tests of hosts rely on."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest
import tensorflow as tf

# What the workers run. They import this file.


def who():
    task = json.loads(os.environ["TF_CONFIG"])
    return task["task"]["index"], task["cluster"]["worker"]


def add(a, b):
    print("adding", a, "and", b)  # noqa: T201
    return {"sum": tf.constant(a) + b}


def fail_on(worker):
    if who()[0] == worker:
        raise tf.errors.UnavailableError(None, None, "not today")
    return "fine"


def end(worker):
    if who()[0] == worker:
        os._exit(3)


def hang():
    while True:
        signal.pause()


def process():
    return os.getpid()


def serve():
    """Takes a connection on the port of `TF_CONFIG`, as a worker's server does, and gives a line that comes by it."""
    index, addresses = who()
    host, _, port = addresses[index].rpartition(":")
    with socket.create_server((host, int(port))) as server:
        server.settimeout(60)
        return server.accept()[0].makefile().readline()


def greet(worker):
    host, _, port = who()[1][worker].rpartition(":")
    with socket.socket() as client:
        client.settimeout(60)
        while client.connect_ex((host, int(port))):
            client.close()
            client = socket.socket()  # noqa: PLW2901
        client.sendall(b"hello\n")


def test_workers_know_who_they_are(workers):
    (first, addresses), (second, others) = workers.call(who)
    assert (first, second) == (0, 1)
    assert addresses == others == list(workers.addresses)
    assert len(set(addresses)) == 2


def test_arguments_reach_each_worker_and_results_come_back_in_order(workers):
    assert [result["sum"].tolist() for result in workers.call(add, [1, 2], workers.each([10, 20]))] == [
        [11, 12],
        [21, 22],
    ]
    assert "adding [1, 2] and 20" in workers.printed(1)


def test_error_of_one_worker_is_told_with_its_kind(workers):
    fine, failed = workers.outcomes(fail_on, 1)
    assert (fine.failed, fine.value) == (False, "fine")
    assert failed.kinds[0] == "UnavailableError"
    assert "not today" in failed.message
    assert "in fail_on" in failed.trace
    with pytest.raises(AssertionError, match="worker 1, after .*: Traceback"):
        workers.call(fail_on, 1)
    assert workers.whole


def test_the_same_processes_serve_one_test_after_the_other(workers):
    assert workers.call(process) == [workers.processes[0], workers.processes[1]]


def test_a_worker_that_ends_is_told_and_can_be_started_again(fresh_workers):
    workers = fresh_workers(2)
    before = dict(workers.processes)
    fine, gone = workers.outcomes(end, 1)
    assert not fine.failed
    assert (gone.kinds, gone.message) == (("Killed",), "the process ended with 3")
    assert not workers.whole
    workers.start(1)
    assert workers.call(process)[0] == before[0]
    workers.send(0, hang)
    workers.kill(0)
    [killed] = workers.collect(0)
    assert killed.message == "the process ended with -9"


def test_a_case_that_takes_too_long_fails_with_where_it_is_and_no_process_is_left(fresh_workers):
    workers = fresh_workers(2)
    workers.send(1, hang)
    workers.signal(1, signal.SIGSTOP)
    with pytest.raises(
        AssertionError, match=r"workers \[1\] were not done after 0.1 s(.|\n)*worker 1 printed:\nCurrent thread"
    ):
        workers.collect(1, timeout=0.1)
    assert not any(Path(f"/proc/{process}").exists() for process in workers.processes.values())
    assert not workers.folder.exists()


def test_ports_are_held_and_can_be_listened_on_at_the_same_time(fresh_workers):
    workers = fresh_workers(2, started=[])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", int(workers.addresses[0].rpartition(":")[2])))
    workers.start(0, 1)
    workers.send(0, serve)
    workers.send(1, greet, 0)
    assert workers.collect(0, 1)[0].value == "hello\n"


def test_workers_in_networks_of_their_own_reach_each_other(workers_on_hosts):
    workers = workers_on_hosts(2)
    assert len({address.rpartition(":")[0] for address in workers.addresses}) == 2
    workers.send(0, serve)
    workers.send(1, greet, 0)
    assert workers.collect(0, 1)[0].value == "hello\n"


def test_a_function_of_a_function_is_refused(workers):
    with pytest.raises(TypeError, match="is no function at the top of a module"):
        workers.call(lambda: 1)
