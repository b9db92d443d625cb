"""Ctrl-C, the interpreter's exit and forks, each in a separate process."""

import signal

PREAMBLE = """
import gc, os, signal, sys, threading, time
import numpy as np
import tensorflow_ipu as ipu, tensorflow as tf
from tensorflow_ipu._native.library import native

strategy = ipu.IPUStrategy()
SCALAR = tf.TensorSpec([], tf.int32)

@tf.function(jit_compile=True)
def echo(source, sink, n):
    i = 0
    while i < n:
        sink.enqueue(source._dequeue())
        i += 1

def run(source, sink, n):
    strategy.run(echo, (source, sink, tf.constant(n)))

def infeed_of(dataset):
    queue = ipu.IPUInfeedQueue(dataset)
    queue.initializer
    return queue

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the condition never came to hold"
        time.sleep(0.001)

def waits(source, sink, n):
    return native.ipu_outfeed_ready(sink._feed.number) == n and native.ipu_infeed_waiting(source._feed.number) == 1

def until_waiting(source, sink, n):
    until(lambda: waits(source, sink, n))

numbers = tf.data.Dataset.range(10**9).map(lambda x: tf.cast(x, tf.int32))
values = tf.queue.FIFOQueue(1000, [tf.int32], [[]])
tap = tf.data.Dataset.range(10**9).map(lambda _: values.dequeue())

def put(*given):
    for value in given:
        values.enqueue(value)

def taken(sink):
    return sink.dequeue().numpy().tolist()

def thread_that_waits():
    source, sink = infeed_of(tap), ipu.IPUOutfeedQueue()
    thread = threading.Thread(target=lambda: run(source, sink, 1))
    thread.start()
    until_waiting(source, sink, 0)
    return thread, source, sink
"""


# TensorFlow converts the failure of the run to an exception. Python's handler raised during that: a RuntimeError of
# pybind11.
def test_ctrl_c_ends_a_run_that_waits_or_is_busy_and_the_next_run_works(run_script):
    script = """
def press_when(condition):
    def work():
        until(condition)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=work).start()

def interrupted(source, sink, n, condition):
    press_when(condition)
    try:
        run(source, sink, n)
    except KeyboardInterrupt as exc:
        assert exc.__suppress_context__
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.set_wakeup_fd(-1) == -1
        return
    raise AssertionError("the run was not interrupted")

# A native wait. What was enqueued stays, and the queue goes on.
source, sink = infeed_of(tap), ipu.IPUOutfeedQueue()
put(0, 1, 2)
interrupted(source, sink, 10, lambda: waits(source, sink, 3))
assert taken(sink) == [0, 1, 2]
put(3, 4, 5, 6)
run(source, sink, 4)
assert taken(sink) == [3, 4, 5, 6]

# A dataset that is stuck in Python code.
released = threading.Event()
def generate():
    yield 1
    released.wait()
    yield 2
source = infeed_of(tf.data.Dataset.from_generator(generate, output_signature=SCALAR))
interrupted(source, sink, 10, lambda: waits(source, sink, 1))
released.set()
run(source, sink, 1)
assert taken(sink) == [1, 2]

# A run that never waits.
source = infeed_of(numbers)
interrupted(source, sink, 2**31 - 1, lambda: native.ipu_outfeed_ready(sink._feed.number) > 1000)
done = len(sink.dequeue())
run(source, sink, 3)
first, *rest = taken(sink)
assert first in (done, done + 1), (first, done)  # The run had one element in hand when it was interrupted.
assert rest == [first + 1, first + 2]

# A wait for completion.
waiting, other, sink = thread_that_waits()
MAIN = threading.main_thread().ident
def main_waits():
    frame = sys._current_frames()[MAIN]
    while frame is not None and frame.f_code.co_name != "wait_until_idle":
        frame = frame.f_back
    return frame is not None
press_when(main_waits)
try:
    sink.dequeue(wait_for_completion=True)
    raise AssertionError("the wait was not interrupted")
except KeyboardInterrupt:
    put(7)
waiting.join(60)
assert taken(sink) == [7]

# The user's own handler: the run goes on, and the handler is called after it.
calls = []
signal.signal(signal.SIGINT, lambda *args: calls.append(args))
def feed_after_the_press():
    until(lambda: native.ipu_infeed_waiting(other._feed.number) == 1)
    os.kill(os.getpid(), signal.SIGINT)
    put(8)
threading.Thread(target=feed_after_the_press).start()
run(other, sink, 1)
assert len(calls) == 1
assert taken(sink) == [8]
signal.signal(signal.SIGINT, signal.default_int_handler)
run(infeed_of(numbers), sink, 1)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

# Replicas.
config = ipu.IPUConfig()
config.auto_select_ipus = 2
config.configure_ipu_system()
source, sink = infeed_of(numbers), ipu.IPUOutfeedQueue()
interrupted(source, sink, 2**31 - 1, lambda: native.ipu_outfeed_ready(sink._feed.number) > 100)
sink.dequeue()
run(source, sink, 1)
[[first, second]] = taken(sink)
assert second == first + 1

# Benchmarks.
def element(n):
    if n == 20:
        os.kill(os.getpid(), signal.SIGINT)
    return np.int32(n)

dataset = tf.data.Dataset.range(10**9).map(lambda n: tf.ensure_shape(tf.numpy_function(element, [n], tf.int32), []))
for benchmark, of in ((ipu.feeds.dataset_benchmark, dataset), (ipu.feeds.infeed_benchmark, ipu.IPUInfeedQueue(dataset))):
    try:
        benchmark(of, 1, 10**9, print_stats=False)
    except KeyboardInterrupt:
        print("interrupted")
"""
    assert run_script(PREAMBLE + script).stdout.splitlines() == ["interrupted", "interrupted"]


def test_forked_child_gets_a_clear_error_and_its_parent_goes_on(run_script):
    script = """
import multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, on forks of a process with threads.
source, sink = infeed_of(numbers), ipu.IPUOutfeedQueue()
run(source, sink, 3)
thread, waited_for, waiting_sink = thread_that_waits()

def child(queue, sink):
    try:
        run(queue, sink, 1)
    except ipu.errors.IpuError as exc:
        assert "forked" in str(exc) and "spawn" in str(exc), exc
    else:
        raise AssertionError("a program ran in the child")

def fork(work):
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        work()
        sys.exit(7)
    found = []
    until(lambda: found.append(os.waitpid(process, os.WNOHANG)) or found[-1][0])
    return os.waitstatus_to_exitcode(found[-1][1])

def leave_without_queues():
    global source, sink, waited_for, waiting_sink
    child(source, sink)
    numbers_of = [queue._feed.number for queue in (source, waited_for)]
    del source, sink, waited_for, waiting_sink
    gc.collect()
    # Their end would need locks and threads that the child may not have.
    assert all(native.ipu_infeed_ready(number) >= 0 for number in numbers_of)

assert fork(lambda: child(source, sink)) == 7
assert fork(leave_without_queues) == 7
process = multiprocessing.get_context("fork").Process(target=child, args=(source, sink))
process.start()
process.join(60)
assert process.exitcode == 0, process.exitcode
put(5)
thread.join(60)
assert taken(waiting_sink) == [5]
run(source, sink, 3)
assert taken(sink) == list(range(6))
print("forks done")
"""
    assert run_script(PREAMBLE + script).stdout.splitlines() == ["forks done"]


def test_ctrl_c_that_nobody_handles_ends_the_process_in_time_whatever_its_pumps_do(run_script):
    script = """
sink = ipu.IPUOutfeedQueue()

def from_python(generate):
    return infeed_of(tf.data.Dataset.from_generator(generate, output_signature=SCALAR))

def stuck():
    yield 1
    threading.Event().wait()

def waiting():
    never = threading.Event()
    while True:
        yield 1
        never.wait(0.01)

def busy():
    while True:
        yield 1

def in_a_thread():
    try:
        run(waited_for, waiting_sink, 1)
    except tf.errors.CancelledError:
        pass

keep = [infeed_of(numbers), infeed_of(numbers.prefetch(8))]
keep += [from_python(generate) for generate in (stuck, waiting, busy)]
for queue in keep:
    run(queue, sink, 1)
keep.append(keep)  # A cycle, which nothing collects.
sys.keep = keep
waited_for, waiting_sink = infeed_of(tap), ipu.IPUOutfeedQueue()
thread = threading.Thread(target=in_a_thread, daemon=True)
thread.start()
until_waiting(waited_for, waiting_sink, 0)

def press():
    until(lambda: native.ipu_runs_waiting(0) == 1)  # For the thread's run to end.
    print("pressed", flush=True)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press).start()
run(keep[0], sink, 1)
"""
    done = run_script(PREAMBLE + script, check=False)
    assert done.stdout == "pressed\n"
    assert done.returncode in (-signal.SIGINT, 128 + signal.SIGINT, 1)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.stderr.count("Traceback") == 1, done.stderr
    for word in ("Fatal", "Exception ignored", "terminate"):
        assert word not in done.stderr, done.stderr


# The last function of a process has a queue in its closure. Its deletion released functions that know lines of Python
# code, for which it took Python's lock. The process ended with SIGSEGV or an abort instead of the exit code.
def test_uncaught_exception_with_a_pump_running_ends_the_process(run_script):
    script = """
def make():
    queue = infeed_of(numbers)
    with strategy.scope():
        weight = tf.Variable(1.0)

    def body(total, x):
        with tf.GradientTape() as tape:
            loss = tf.nn.silu(weight * tf.cast(x, tf.float32))  # Its gradient is of `tf.custom_gradient`.
        return total + tape.gradient(loss, weight)

    return tf.function(lambda: ipu.loops.repeat(1, body, [0.0], queue), jit_compile=True, autograph=False)

step = make()
print(strategy.run(step).numpy())
_, source, _ = thread_that_waits()  # No daemon: the process waits for it.

def drop_at_the_end(number):
    threading.main_thread().join(60)
    native.ipu_infeed_drop(number)

threading.Thread(target=drop_at_the_end, args=(source._feed.number,)).start()
raise KeyError("nobody catches this")
"""
    done = run_script(PREAMBLE + script, check=False)
    assert (done.returncode, done.stdout) == (1, "0.0\n")
    assert "nobody catches this" in done.stderr
    assert "was deleted or restarted while a program used it" in done.stderr


def test_dataset_whose_operation_outlasts_python_leaves_pythons_objects_alone(run_script):
    script = """
import atexit, ctypes
from pathlib import Path
from tensorflow_ipu.feeds import _queue
from tensorflow_ipu.ops import compile_user_operation

# A read that nothing but a writer can end, and none comes before Python has gone.
os.mkfifo("pipe")
begun = tf.Variable(0)

def read(name):
    begun.assign_add(1)
    return tf.strings.length(tf.io.read_file(name))

Path("exit.cc").write_text(r'''
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

bool PumpIsThere() { return std::system("grep -qs ipu-pump /proc/$PPID/task/*/comm") == 0; }

void EndRead() {
  for (int tries = 0; tries < 6000 && PumpIsThere(); ++tries) {
    const int pipe = open("pipe", O_WRONLY | O_NONBLOCK);
    if (pipe >= 0) close(pipe);
    usleep(10000);
  }
  std::fputs(PumpIsThere() ? "stuck\\n" : "over\\n", stderr);
}

extern "C" void EndReadAtExit() { std::atexit(EndRead); }
''')
library = ctypes.CDLL(compile_user_operation("exit.cc"))

atexit.unregister(_queue._at_exit)
atexit.register(library.EndReadAtExit)  # Comes after the other one, so that what it registers comes before that's.
atexit.register(_queue._at_exit)
waited_for = infeed_of(tf.data.Dataset.from_tensors("pipe").map(read))
until(lambda: int(begun) == 1)
del waited_for, read
gc.collect()  # The pump alone has the dataset now, and its function.
sys.exit(3)
"""
    done = run_script(PREAMBLE + script, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (3, ["over"]), done


# Sessions, graphs and queues end in every order while their datasets are read.
SESSIONS = """
from pathlib import Path
from tensorflow.python.eager import context

del strategy, echo, run, put, taken, tap, values, numbers  # Of the context that ends.
gc.freeze()  # Each collection would look at all that TensorFlow's import made.
v1 = tf.compat.v1
FLOAT = tf.TensorSpec([], tf.float32)
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

def slow_to_go(D):
    # Lets go of its generator when `released` says so.
    def generate():
        try:
            while True:
                yield 1.0
        finally:
            released.wait()
    return D.from_generator(generate, output_signature=FLOAT).map(lambda x: x + 1).repeat()

def stuck(D):
    # Waits in Python for its first element, and has more to do with what the session owns then: a table, a shuffle, a
    # cache.
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


def test_sessions_contexts_and_configurations_end_in_every_order_before_their_datasets_do(run_script):
    script = """
def episode(make, order, deleted):
    graph = tf.Graph()
    with graph.as_default():
        queue = ipu.IPUInfeedQueue(make(v1.data.Dataset))
        session = v1.Session()
        session.run(v1.tables_initializer())
        session.run(queue.initializer)
        entered.acquire() if make is stuck else until(lambda: native.ipu_infeed_ready(queue._feed.number) > 0)
        if deleted:
            session.run(queue.deleter)
    held = {"session": session, "graph": graph, "queue": queue}
    del session, graph, queue
    for name in order:
        if name == "session":
            held[name].close()
        del held[name]
        gc.collect()

episode(slow_to_go, ["session", "graph", "queue"], deleted=False)
episode(slow_to_go, ["queue", "graph", "session"], deleted=False)
episode(slow_to_go, ["graph", "session", "queue"], deleted=True)
episode(stuck, ["session", "queue", "graph"], deleted=False)
episode(stuck, ["graph", "queue", "session"], deleted=False)
assert pumps() >= 5, pumps()  # Threads that TensorFlow 2.20 starts there have the name too.
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
    assert run_script(PREAMBLE + SESSIONS + script).stdout.splitlines()[-2:] == ["sessions", "iterators"]


def test_process_ends_as_it_was_to_while_datasets_are_in_python(run_script):
    script = """
def busy():
    yield 1.0
    entered.release()
    never = threading.Event()
    while True:
        never.wait(0.0005)  # Comes back to an interpreter that is about to go, or has gone.

with v1.Session(graph=tf.Graph()) as session:
    with session.graph.as_default():
        in_graph = ipu.IPUInfeedQueue(stuck(v1.data.Dataset))
        session.run(v1.tables_initializer())
        session.run(in_graph.initializer)
    entered.acquire()
queues = [ipu.IPUInfeedQueue(tf.data.Dataset.from_generator(busy, output_signature=FLOAT)) for _ in range(2)]
for queue in queues:
    queue.initializer
    entered.acquire()
queues.append(ipu.IPUInfeedQueue(slow_to_go(tf.data.Dataset)))
queues[-1].initializer
print("output that is not flushed", end="")
sys.exit(3)
"""
    done = run_script(PREAMBLE + SESSIONS + script, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout.endswith("output that is not flushed")
    for word in ("Fatal", "terminate", "Traceback"):
        assert word not in done.stderr, done.stderr
