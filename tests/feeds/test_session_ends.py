"""Sessions, graphs and queues that end while their datasets are read, in every order, in processes of their own."""

from __future__ import annotations

from typing import Any

PREAMBLE = """
import gc, sys, threading, time
from pathlib import Path
import tensorflow_ipu as ipu, tensorflow as tf
from tensorflow.python.eager import context

gc.freeze()  # Each collection would look at all that TensorFlow's import made.
v1 = tf.compat.v1
SCALAR = tf.TensorSpec([], tf.float32)
released = threading.Event()
entered = threading.Semaphore(0)

def pumps():
    names = []
    for comm in Path("/proc/self/task").glob("*/comm"):
        try:
            names.append(comm.read_text().strip())
        except OSError:
            pass  # The thread has ended meanwhile.
    return names.count("ipu-pump")

def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came to hold"
        time.sleep(0.001)

def slow_to_go(D):
    # Lets go of its generator when `released` says so.
    def generate():
        try:
            while True:
                yield 1.0
        finally:
            released.wait()
    return D.from_generator(generate, output_signature=SCALAR).map(lambda x: x + 1).repeat()

def stuck(D):
    # Waits in Python for its first element, and has more to do with what the session owns then: a table, a shuffle, a cache.
    def wait(x):
        entered.release()
        released.wait()
        return x
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([5.0, 6.0])), 0.0)
    def look_up(i):
        return table.lookup(tf.ensure_shape(tf.py_function(wait, [i], tf.int64), []))
    return D.range(8).shuffle(4).map(look_up).cache().repeat().prefetch(1)
"""


def test_sessions_contexts_and_configurations_end_in_every_order_before_their_datasets_do(run_script: Any) -> None:
    script = """
def episode(make, order, deleted):
    graph = tf.Graph()
    with graph.as_default():
        queue = ipu.IPUInfeedQueue(make(v1.data.Dataset))
        session = v1.Session()
        session.run(v1.tables_initializer())
        session.run(queue.initializer)
        entered.acquire() if make is stuck else until(lambda: ipu_ready(queue) > 0)
        if deleted:
            session.run(queue.deleter)
    held = {"session": session, "graph": graph, "queue": queue}
    del session, graph, queue
    for name in order:
        if name == "session":
            held[name].close()
        del held[name]
        gc.collect()

def ipu_ready(queue):
    return ipu._native.library.native.ipu_infeed_ready(queue._feed.number)

episode(slow_to_go, ["session", "graph", "queue"], deleted=False)
episode(slow_to_go, ["queue", "graph", "session"], deleted=False)
episode(slow_to_go, ["graph", "session", "queue"], deleted=True)
episode(stuck, ["session", "queue", "graph"], deleted=False)
episode(stuck, ["graph", "queue", "session"], deleted=False)
assert pumps() == 5, pumps()
released.set()  # All sessions are gone, with their devices.
until(lambda: pumps() == 0)
print("sessions")

# The same of eager iterators, whose contexts and configurations end.
released.clear()
entered = threading.Semaphore(0)
for make in (slow_to_go, stuck):
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        iterator = iter(make(tf.data.Dataset))
    if make is stuck:
        entered.acquire()
    ipu.config.reset_ipu_configuration()
    del iterator, strategy
    gc.collect()
with ipu.IPUStrategy().scope():
    kept = [iter(make(tf.data.Dataset)) for make in (slow_to_go, stuck)]
entered.acquire()
context._reset_context()
del kept
gc.collect()
assert pumps() > 0
released.set()
until(lambda: pumps() == 0)
print("iterators")
"""
    assert run_script(PREAMBLE + script).stdout.splitlines()[-2:] == ["sessions", "iterators"]


def test_process_ends_as_it_was_to_while_datasets_are_in_python(run_script: Any) -> None:
    script = """
def busy():
    yield 1.0
    entered.release()
    while True:
        time.sleep(0.0005)  # Comes back to an interpreter that is about to go, or has gone.

with v1.Session(graph=tf.Graph()) as session:
    with session.graph.as_default():
        in_graph = ipu.IPUInfeedQueue(stuck(v1.data.Dataset))
        session.run(v1.tables_initializer())
        session.run(in_graph.initializer)
    entered.acquire()
queues = [ipu.IPUInfeedQueue(tf.data.Dataset.from_generator(busy, output_signature=SCALAR)) for _ in range(2)]
for queue in queues:
    queue.initializer
    entered.acquire()
queues.append(ipu.IPUInfeedQueue(slow_to_go(tf.data.Dataset)))
queues[-1].initializer
print("output that is not flushed", end="")
sys.exit(3)
"""
    done = run_script(PREAMBLE + script, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout.endswith("output that is not flushed")
    for word in ("Fatal", "terminate", "Traceback"):
        assert word not in done.stderr, done.stderr
