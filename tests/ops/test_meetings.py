"""Many replicas with many collectives in flight: none hangs, all agree, and every failure names its collective."""

import gc
import os
import signal
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import ReplicaGroups, _collectives, sites
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_mean, cross_replica_sum
from tensorflow_ipu.ops.replication_ops import replication_index
from tensorflow_ipu.programs import _program

FAILED = tf.errors.FailedPreconditionError


@pytest.fixture
def until_waiting(domains, until):
    """`until_waiting(count)` returns when `count` replicas wait on the device."""
    return lambda count: until(lambda: domains.domain_waiting(0) == count)


def test_sixteen_replicas_that_compute_between_six_collectives_in_flight_agree(start, trace):
    def program(x, steps):
        for _ in tf.range(steps):
            parts = [tf.tanh(cross_replica_mean(tf.tanh(x @ x) * (0.01 * j) + tf.sin(x)) @ x) for j in range(6)]
            x = tf.add_n(parts) * 0.01
        return cross_replica_sum(x)

    compiled = trace(program, tf.TensorSpec([64, 64]), tf.TensorSpec([], tf.int32))
    x = np.random.default_rng(0).normal(size=(16, 64, 64)).astype(np.float32)
    distinct = set()
    for _ in range(5):
        results = start([compiled] * 16, [(row, np.int32(10)) for row in x]).wait()
        distinct |= {result.tobytes() for result in results}
    assert len(distinct) == 1


def test_tensors_of_many_types_and_sizes_meet_once_and_a_function_that_is_called_twice_twice(start, trace):
    inner = tf.function(cross_replica_sum)

    def program(x):
        values = [x, tf.cast(x[0], tf.int32), tf.cast(x, tf.float16), tf.zeros([0])]
        return _collectives.all_reduce("gradients", values, "sum", ReplicaGroups())

    compiled = trace(program, tf.TensorSpec([3]))
    assert [op.type for op in compiled.graph.get_operations()].count("IpuAllReduce") == 1
    for results in start([compiled] * 2, [([1.0, 2.0, 3.0],), ([10.0, 20.0, 30.0],)]).wait():
        for result, expected in zip(results, ([11, 22, 33], 11, [11, 22, 33], []), strict=True):
            np.testing.assert_array_equal(result, expected)
    twice = trace(lambda x: (inner(x), inner(2.0 * x)), tf.TensorSpec([]))
    assert start([twice] * 2, [(1.0,), (2.0,)]).wait() == [(3.0, 6.0)] * 2


def test_a_replica_that_ends_early_fails_the_others_by_the_collectives_name(start, trace):
    def program(x, steps):
        for _ in tf.range(steps):
            x = cross_replica_sum(x, name="gradients")
        return x

    compiled = trace(program, tf.TensorSpec([]), tf.TensorSpec([], tf.int32))
    for early in range(4):
        inputs = [(1.0, np.int32(3 if replica == early else 5)) for replica in range(4)]
        results = start([compiled] * 4, inputs).wait()
        assert results[early] == 64.0
        for replica in set(range(4)) - {early}:
            assert isinstance(results[replica], FAILED)
            assert f"never will be by replica {early}" in results[replica].message
            assert "gradients in program`" in results[replica].message
    assert start([compiled] * 4, [(1.0, np.int32(5))] * 4).wait() == [1024.0] * 4


def test_replicas_in_different_branches_fail_at_the_limit_for_waits(start, trace):
    def program(x):
        if replication_index() == 0:
            return cross_replica_sum(x, name="left")
        return cross_replica_sum(x, name="right")

    ipu.feeds.set_wait_limit(0.05)
    for result in start([trace(program, tf.TensorSpec([]))] * 2, [(1.0,), (1.0,)]).wait():
        assert isinstance(result, (tf.errors.DeadlineExceededError, FAILED))
        assert "left" in result.message or "right" in result.message


def test_an_aborted_run_fails_everywhere_with_the_given_error_and_the_next_works(domains, until_waiting, start, trace):
    compiled = trace(cross_replica_sum, tf.TensorSpec([]))
    nested = trace(lambda x: cross_replica_sum(cross_replica_sum(x)), tf.TensorSpec([]))
    run = start([compiled, nested], [(1.0,), (1.0,)])
    until_waiting(2)
    domains.domain_abort(0, tf.errors.OUT_OF_RANGE, b"replica 7 has no more data")
    for result in run.wait():
        assert isinstance(result, tf.errors.OutOfRangeError)
        assert "replica 7 has no more data" in result.message
    assert start([compiled] * 2, [(1.0,), (2.0,)]).wait() == [3.0, 3.0]


def test_replicas_that_do_not_agree_at_a_site_fail_by_its_name(monkeypatch, start, trace):
    for function, messages in (
        (lambda x: cross_replica_sum(tf.stack([x, x]))[0], "1 x float32|2 x float32"),
        (lambda x: cross_replica_mean(x), "another operation"),
        (lambda x: cross_replica_sum(x, ReplicaGroups(2)), "another operation or group"),
    ):
        site = sites._make("/device:IPU:0", "the site")
        monkeypatch.setattr(sites, "new", lambda *_, site=site: (site.state("/device:IPU:0"), []))
        programs = [trace(traced, tf.TensorSpec([])) for traced in (cross_replica_sum, function)]
        for result in start(programs, [(1.0,), (1.0,)]).wait():
            assert isinstance(result, tf.errors.InvalidArgumentError)
            assert "`the site`" in result.message
            assert any(message in result.message for message in messages.split("|"))


def test_a_program_without_a_run_is_refused_and_interrupt_ends_a_wait_for_another_replica(
    domains, until_waiting, trace
):
    compiled = trace(cross_replica_sum, tf.TensorSpec([]))
    domains.domain_begin(0, 1)
    states = [state._ipu_native.state("/device:IPU:0", 1, 2) for state in compiled.captured_inputs]
    with tf.device("/device:IPU:0"), pytest.raises(FAILED, match="no such run is active"):
        compiled._call_flat([tf.constant(1.0)], captured_inputs=states)
    domains.domain_begin(0, 2)
    states = [state._ipu_native.state("/device:IPU:0", 0, 2) for state in compiled.captured_inputs]

    def press():
        until_waiting(1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with tf.device("/device:IPU:0"), pytest.raises(KeyboardInterrupt):
        _program.interruptible(lambda: compiled._call_flat([tf.constant(1.0)], captured_inputs=states))
    thread.join()
    domains.domain_leave(0, 0)
    domains.domain_leave(0, 1)


def test_a_site_goes_with_the_programs_that_have_it(start, trace):
    compiled = trace(cross_replica_sum, tf.TensorSpec([]))
    feed = weakref.ref(compiled.captured_inputs[0]._ipu_native)
    gc.collect()
    assert start([compiled] * 2, [(1.0,), (2.0,)]).wait() == [3.0, 3.0]
    del compiled
    gc.collect()
    assert feed() is None
