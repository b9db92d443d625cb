"""Memory stays constant however long programs run. Without memory or threads, a call fails and loses nothing."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu

MEBIBYTE = 2**20


def test_iterations_and_queues_leave_no_memory_behind(infeed_of, numbers, echo, check_growth):
    infeed, outfeed, dataset = infeed_of(numbers(1000).repeat()), ipu.IPUOutfeedQueue(), numbers(10)

    def run_and_read() -> None:
        echo(infeed, outfeed, 100_000)
        taken = outfeed.dequeue()
        assert taken.shape == (100_000,)
        assert int(taken[-1]) == 999
        for _ in range(50):
            short, sink = infeed_of(dataset), ipu.IPUOutfeedQueue()
            echo(short, sink, 10)
            sink.dequeue()

    run_and_read()
    check_growth(run_and_read, 5 * MEBIBYTE)


def test_large_elements_leave_no_memory_behind_and_mode_last_holds_one(infeed_of, echo, check_growth):
    block = np.zeros(MEBIBYTE // 4, np.float32)
    infeed = infeed_of(tf.data.Dataset.from_tensors(block).repeat())
    outfeed, last = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)

    def run_and_read() -> None:
        for _ in range(4):
            echo(infeed, outfeed, 16)
            assert outfeed.dequeue().shape == (16, MEBIBYTE // 4)
        echo(infeed, last, 100)

    run_and_read()
    check_growth(run_and_read, 5 * MEBIBYTE)


PREAMBLE = """
import ctypes, resource
from pathlib import Path
import numpy as np
import tensorflow_ipu as ipu, tensorflow as tf

MEBIBYTE = 2**20

def refused(call, *words):
    try:
        call()
    except tf.errors.ResourceExhaustedError as exc:
        for word in words:
            assert word in str(exc), exc
    else:
        raise AssertionError("nothing was refused")
"""


def test_queues_start_once_there_are_threads_and_keep_what_there_is_no_memory_for(run_script):
    script = """
# What becomes of a program that gets no thread to go on with is a test of the executor's; see `tests/core`.
libc = ctypes.CDLL(None)
class no_threads:
    # Has the stack of each new thread be larger than all addresses.
    def __enter__(self):
        self.before, huge = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
        for attributes in (self.before, huge):
            assert libc.pthread_getattr_default_np(attributes) == 0
        assert libc.pthread_attr_setstacksize(huge, ctypes.c_size_t(1 << 48)) == 0
        assert libc.pthread_setattr_default_np(huge) == 0
    def __exit__(self, *_):
        assert libc.pthread_setattr_default_np(self.before) == 0

native = ipu._native.library.native
queue = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(1.0).repeat())
with no_threads():
    refused(lambda: queue.initializer, "no further thread (`ipu-deadlines`", "ulimit -u")
assert native.ipu_infeed_ready(queue._feed.number) == -1
queue.initializer
of_map = tf.data.Dataset.range(9).map(lambda x: tf.cast(x, tf.float32), num_parallel_calls=2)
options = tf.data.Options()
options.threading.private_threadpool_size = 30
other = ipu.IPUInfeedQueue(of_map.with_options(options))
with no_threads():  # All that outlasts a queue is there: the next to ask for a thread would be TensorFlow's dataset.
    refused(lambda: other.initializer, "no further thread (`ipu-try`", "ulimit -u")
other.initializer
strategy = ipu.IPUStrategy()
ipu.feeds.set_wait_limit(60)
take = tf.function(lambda: (queue._dequeue(), other._dequeue()), jit_compile=True)
assert [[float(x) for x in strategy.run(take)] for _ in range(3)] == [[1, 0], [1, 1], [1, 2]]
del queue, other, take
print("threads")

queue = ipu.IPUOutfeedQueue()

@tf.function(jit_compile=True)
def program(begin, end):
    for i in tf.range(begin, end):
        queue.enqueue({"i": i, "block": tf.fill([MEBIBYTE], tf.cast(i, tf.float32))})

def run(begin, end):
    strategy.run(program, (tf.constant(begin), tf.constant(end)))

def numbers(part):
    np.testing.assert_array_equal(part["block"][:, -1], part["i"])
    return part["i"].numpy().tolist()

class spare:
    # Leaves the process so many bytes more than it has.
    def __init__(self, size):
        self.size = size
    def __enter__(self):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        self.before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + self.size, self.before[1]))
    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_AS, self.before)

run(0, 64)
with spare(200 * MEBIBYTE):
    assert numbers(queue.dequeue(max_elements=3)) == [0, 1, 2]
    assert next(iter(queue))["i"] == 3
    # An iterator has taken three. Refused once: oneDNN's allocator waits ten seconds for memory to come back.
    refused(queue.dequeue, "no memory to dequeue 58 element(s)", "`max_elements`")
    assert [int(next(iter(queue))["i"]) for _ in range(6)] == list(range(4, 10))
assert numbers(queue.dequeue()) == list(range(10, 64))
print("dequeue")

with spare(200 * MEBIBYTE):
    refused(lambda: run(0, 100), "no memory for another element of the outfeed queue", "unread elements", "LAST")
kept = numbers(queue.dequeue())
assert kept == list(range(len(kept))) and 0 < len(kept) < 100, kept
run(0, 2)
assert numbers(queue.dequeue()) == [0, 1]
print("enqueue")
"""
    assert run_script(PREAMBLE + script).stdout.split() == ["threads", "dequeue", "enqueue"]
