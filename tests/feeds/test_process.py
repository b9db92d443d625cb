"""Ctrl-C, the interpreter's exit and forks, each in a process of its own."""

from __future__ import annotations

import signal
import time
from typing import Any

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

def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came to hold"
        time.sleep(0.001)

def until_waiting(source, sink, n):
    until(lambda: native.ipu_outfeed_ready(sink._feed.number) == n)
    until(lambda: native.ipu_infeed_waiting(source._feed.number) == 1)

numbers = tf.data.Dataset.range(10**9).map(lambda x: tf.cast(x, tf.int32))
values = tf.queue.FIFOQueue(1000, [tf.int32], [[]])
tap = tf.data.Dataset.range(10**9).map(lambda _: values.dequeue())
"""


def test_ctrl_c_ends_a_run_that_waits_and_the_next_run_works(run_script: Any) -> None:
    script = """
def press_when(condition):
    def work():
        until(condition)
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    pressed = []
    threading.Thread(target=work).start()
    return pressed

def interrupted(source, sink, n, condition):
    pressed = press_when(condition)
    try:
        run(source, sink, n)
    except KeyboardInterrupt:
        took = time.monotonic() - pressed[0]
        assert took < 60, took
        return
    raise AssertionError("the run was not interrupted")

# A native wait. What was enqueued stays, and the queue goes on.
source, sink = infeed_of(tap), ipu.IPUOutfeedQueue()
for value in range(3):
    values.enqueue(value)
interrupted(source, sink, 10, lambda: native.ipu_outfeed_ready(sink._feed.number) == 3
    and native.ipu_infeed_waiting(source._feed.number) == 1)
assert sink.dequeue().numpy().tolist() == [0, 1, 2]
for value in range(3, 7):
    values.enqueue(value)
run(source, sink, 4)
assert sink.dequeue().numpy().tolist() == [3, 4, 5, 6]
print("native wait")

# A dataset that is stuck in Python code.
released = threading.Event()
def generate():
    yield 1
    released.wait()
    yield 2
source = infeed_of(tf.data.Dataset.from_generator(generate, output_signature=SCALAR))
interrupted(source, sink, 10, lambda: native.ipu_outfeed_ready(sink._feed.number) == 1
    and native.ipu_infeed_waiting(source._feed.number) == 1)
released.set()
run(source, sink, 1)
assert sink.dequeue().numpy().tolist() == [1, 2]
print("python code")

# A run that never waits.
source = infeed_of(numbers)
interrupted(source, sink, 2**31 - 1, lambda: native.ipu_outfeed_ready(sink._feed.number) > 1000)
done = len(sink.dequeue())
run(source, sink, 3)
first, *rest = sink.dequeue().numpy().tolist()
assert first in (done, done + 1), (first, done)  # The run had one element in hand when it was interrupted.
assert rest == [first + 1, first + 2]
print("busy run")

# A wait for completion.
other = infeed_of(tap)
waiting = threading.Thread(target=lambda: run(other, sink, 1))
waiting.start()
until_waiting(other, sink, 0)
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
    values.enqueue(7)
waiting.join(60)
assert sink.dequeue().numpy().tolist() == [7]
print("wait for completion")

# The user's own handler: the run goes on, and the handler is called after it.
calls = []
signal.signal(signal.SIGINT, lambda *args: calls.append(args))
def feed_after_the_press():
    until(lambda: native.ipu_infeed_waiting(other._feed.number) == 1)
    os.kill(os.getpid(), signal.SIGINT)
    values.enqueue(8)
threading.Thread(target=feed_after_the_press).start()
run(other, sink, 1)
assert len(calls) == 1
assert sink.dequeue().numpy().tolist() == [8]
signal.signal(signal.SIGINT, signal.default_int_handler)
run(infeed_of(numbers), sink, 1)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print("own handler")
"""
    done = run_script(PREAMBLE + script)
    assert done.stdout.split("\n")[:5] == [
        "native wait",
        "python code",
        "busy run",
        "wait for completion",
        "own handler",
    ]


def test_ctrl_c_that_nobody_handles_ends_the_process_in_time_whatever_its_pumps_do(run_script: Any) -> None:
    script = """
sink = ipu.IPUOutfeedQueue()

def from_python(generate):
    return infeed_of(tf.data.Dataset.from_generator(generate, output_signature=SCALAR))

def stuck():
    yield 1
    threading.Event().wait()

def sleeping():
    while True:
        yield 1
        time.sleep(0.01)

def busy():
    while True:
        yield 1

def in_a_thread():
    try:
        run(waited_for, waiting_sink, 1)
    except tf.errors.CancelledError:
        pass

keep = [infeed_of(numbers), infeed_of(numbers.prefetch(8))]
keep += [from_python(generate) for generate in (stuck, sleeping, busy)]
for queue in keep:
    run(queue, sink, 1)
keep.append(keep)  # A cycle, which nothing collects.
sys.keep = keep
waited_for, waiting_sink = infeed_of(tap), ipu.IPUOutfeedQueue()
thread = threading.Thread(target=in_a_thread, daemon=True)
thread.start()
until_waiting(waited_for, waiting_sink, 0)
last, last_sink = infeed_of(tap), ipu.IPUOutfeedQueue()

def press():
    until_waiting(last, last_sink, 0)
    print(time.time(), flush=True)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press).start()
run(last, last_sink, 1)
"""
    done = run_script(PREAMBLE + script, check=False)
    took = time.time() - float(done.stdout)
    assert done.returncode in (-signal.SIGINT, 128 + signal.SIGINT, 1)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert took < 60
    assert done.stderr.count("Traceback") == 1, done.stderr
    for word in ("Fatal", "Exception ignored", "terminate"):
        assert word not in done.stderr, done.stderr


def test_uncaught_exception_with_a_pump_running_ends_the_process(run_script: Any) -> None:
    script = """
source, sink = infeed_of(tap), ipu.IPUOutfeedQueue()
thread = threading.Thread(target=lambda: run(source, sink, 1))  # No daemon: the process waits for it.
thread.start()
until_waiting(source, sink, 0)
threading.Timer(0.1, source._feed.drop).start()
raise KeyError("nobody catches this")
"""
    done = run_script(PREAMBLE + script, check=False)
    assert done.returncode == 1
    assert "nobody catches this" in done.stderr
    assert "was deleted or restarted while a program used it" in done.stderr


# It let go of functions that know the lines of Python they come from, for which it took Python's lock: SIGSEGV, or an
# abort, in the place of the exit code.
def test_process_ends_whose_last_function_has_the_queue_in_its_closure(run_script: Any) -> None:
    script = """
def make():
    queue = infeed_of(numbers)
    with strategy.scope():
        weight = tf.Variable(1.0)

    def body(total, x):
        with tf.GradientTape() as tape:
            loss = tf.nn.silu(weight * tf.cast(x, tf.float32))  # Its gradient is of `tf.custom_gradient`.
        return total + tape.gradient(loss, weight)

    @tf.function(jit_compile=True)
    def step():
        return ipu.loops.repeat(1, body, [0.0], queue)

    return step

step = make()
print(strategy.run(step).numpy())
"""
    done = run_script(PREAMBLE + script)
    assert done.stdout.splitlines()[-1] == "0.0"
    assert "Traceback" not in done.stderr


def test_dataset_whose_operation_outlasts_python_leaves_pythons_objects_alone(run_script: Any) -> None:
    script = """
import atexit, ctypes
from pathlib import Path
from tensorflow_ipu.feeds import _feed
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
#include <filesystem>
#include <fstream>
#include <string>
#include <fcntl.h>
#include <unistd.h>

bool PumpIsThere() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "ipu-pump") return true;
  }
  return false;
}

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

atexit.unregister(_feed._at_exit)
atexit.register(library.EndReadAtExit)  # Comes after the other one, so that what it registers comes before that's.
atexit.register(_feed._at_exit)
waited_for = infeed_of(tf.data.Dataset.from_tensors("pipe").map(read))
until(lambda: int(begun) == 1)
del waited_for, read
gc.collect()  # The pump alone has the dataset now, and its function.
sys.exit(3)
"""
    done = run_script(PREAMBLE + script, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (3, ["over"]), done


def test_forked_child_gets_a_clear_error_and_its_parent_goes_on(run_script: Any) -> None:
    script = """
import multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, on forks of a process with threads.

source, sink = infeed_of(numbers), ipu.IPUOutfeedQueue()
run(source, sink, 3)
waited_for, waiting_sink = infeed_of(tap), ipu.IPUOutfeedQueue()
thread = threading.Thread(target=lambda: run(waited_for, waiting_sink, 1))
thread.start()
until_waiting(waited_for, waiting_sink, 0)

def child(queue, sink):
    try:
        run(queue, sink, 1)
    except ipu.errors.IpuError as exc:
        assert "forked" in str(exc) and "spawn" in str(exc), exc
    else:
        raise AssertionError("a program ran in the child")

def wait_for(process, seconds=60):
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
            raise AssertionError("the child hangs")
        time.sleep(0.005)

def fork(work):
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        work()
        sys.exit(7)
    return wait_for(process)

def leave():
    child(source, sink)

def leave_without_queues():
    global source, sink, waited_for, waiting_sink
    child(source, sink)
    numbers_of = [queue._feed.number for queue in (source, waited_for)]
    del source, sink, waited_for, waiting_sink
    gc.collect()
    # Their end would need locks and threads that the child may not have.
    assert all(native.ipu_infeed_ready(number) >= 0 for number in numbers_of)

assert fork(leave) == 7
assert fork(leave_without_queues) == 7
process = multiprocessing.get_context("fork").Process(target=child, args=(source, sink))
process.start()
process.join(60)
assert process.exitcode == 0, process.exitcode
print("children done")

run(source, sink, 3)
assert sink.dequeue().numpy().tolist() == list(range(6))
values.enqueue(5)
thread.join(60)
assert waiting_sink.dequeue().numpy().tolist() == [5]
print("parent done")
"""
    done = run_script(PREAMBLE + script)
    assert done.stdout.split("\n")[:2] == ["children done", "parent done"]
