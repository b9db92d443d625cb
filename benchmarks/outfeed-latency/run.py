"""Compares the time from an enqueue to the dequeuing thread with the time to wake a thread."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf
from measure import print_table

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native
from tensorflow_ipu.ops import compile_user_operation

SAMPLES = 1000
ROUNDS = 3

# The pause between two elements. A thread wakes sooner after a short sleep than after a long one.
PAUSE_US = 300

# The giver computes for this time after each element. Like a program, it does not yield its processor to the taker.
WORK_US = 60

# A product of square matrices of this size takes about as long.
WORK_SIZE = 128

# The giver thread wakes the taker thread, which measures the time since then.
HAND_OVERS = """
#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

using Clock = std::chrono::steady_clock;

extern "C" void GoOn(int64_t us) {
  const Clock::time_point end = Clock::now() + std::chrono::microseconds(us);
  while (Clock::now() < end) {
  }
}

extern "C" void StayOn(int64_t processor) {
  if (processor < 0) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  sched_setaffinity(0, sizeof(one), &one);
}

extern "C" void HandOvers(int64_t count, int64_t pause_us, int64_t work_us, int64_t from, int64_t to,
                          double* microseconds) {
  std::mutex mutex;
  std::condition_variable given;
  int64_t turn = 0;
  Clock::time_point at;
  std::thread giver([&] {
    StayOn(from);
    for (int64_t i = 0; i < count; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      {
        const std::lock_guard<std::mutex> lock(mutex);
        ++turn;
        at = Clock::now();
      }
      given.notify_one();
      GoOn(work_us);
    }
  });
  std::thread taker([&] {
    StayOn(to);
    for (int64_t mine = 0; mine < count; ++mine) {
      std::unique_lock<std::mutex> lock(mutex);
      given.wait(lock, [&] { return turn > mine; });
      microseconds[mine] = std::chrono::duration<double, std::micro>(Clock::now() - at).count();
    }
  });
  giver.join();
  taker.join();
}
"""

# The processors of the giver and of the taker; None if the system selects them.
Places = tuple[int, int] | None


@contextmanager
def placed(places: Places) -> Iterator[None]:
    """Runs the block with all threads of the process, and threads that they start, on the giver's processor."""
    original = os.sched_getaffinity(0)

    def all_on(processors: set[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # The thread has ended.
                os.sched_setaffinity(int(thread), processors)

    if places is not None:
        all_on({places[0]})
    yield
    all_on(original)


def stay_as_taker(places: Places) -> None:
    """Binds the calling thread to the taker's processor."""
    if places is not None:
        os.sched_setaffinity(0, {places[1]})


def native_library() -> ctypes.CDLL:
    """Compiles and loads `HAND_OVERS`."""
    source = pathlib.Path(tempfile.mkdtemp(), "hand_overs.cc")
    source.write_text(HAND_OVERS)
    return ctypes.CDLL(compile_user_operation(source))


def between_native_threads(library: ctypes.CDLL, places: Places) -> list[float]:
    """Returns the microseconds that it takes to wake a native thread by a condition variable."""
    microseconds = (ctypes.c_double * SAMPLES)()
    library.HandOvers(*map(ctypes.c_int64, (SAMPLES, PAUSE_US, WORK_US, *(places or (-1, -1)))), microseconds)
    return list(microseconds)


def wakes_of_python(library: ctypes.CDLL, places: Places) -> list[float]:
    """Returns the microseconds that it takes to wake a Python thread by releasing a lock."""
    turn = threading.Lock()
    turn.acquire()
    released = 0

    def give() -> None:
        nonlocal released
        for _ in range(SAMPLES):
            time.sleep(PAUSE_US / 1e6)
            while not turn.locked():  # The other thread was late.
                time.sleep(PAUSE_US / 1e6)
            released = time.monotonic_ns()
            turn.release()
            library.GoOn(ctypes.c_int64(WORK_US))  # `ctypes` releases the interpreter's lock meanwhile.

    microseconds = []
    with placed(places):
        giver = threading.Thread(target=give)
        giver.start()
        stay_as_taker(places)
        for _ in range(SAMPLES):
            turn.acquire()
            microseconds.append((time.monotonic_ns() - released) / 1e3)
        giver.join()
    return microseconds


def numbers() -> tf.data.Dataset:
    """Returns a dataset of integers with a pause before each.

    TensorFlow's dataset makes the pause, because a Python generator would need the interpreter's lock.
    """
    source = tf.data.Dataset.range(SAMPLES, output_type=tf.int32)
    spec = source.element_spec
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(source),
        sleep_microseconds=PAUSE_US,
        output_types=[spec.dtype],
        output_shapes=[spec.shape],
    )
    return tf.data.experimental.from_variant(variant, spec)


def through_a_program(places: Places, wait_first: bool = False) -> list[float]:
    """Returns the microseconds from the enqueue of elements in a program to the thread that dequeues them.

    Args:
      places: The processor of the program and the process's other threads, and the processor of the dequeuing thread.
      wait_first: True to dequeue an element only when it is available, and to time only the call.
    """
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        iterator = iter(numbers())
        outfeed = ipu.IPUOutfeedQueue()
    factor = tf.zeros([WORK_SIZE, WORK_SIZE])

    @tf.function(jit_compile=True)
    def program(iterator, n, product):
        for _ in tf.range(n):
            outfeed.enqueue(next(iterator))
            product = product @ factor
        return product

    with placed(places):
        run = threading.Thread(target=lambda: strategy.run(program, args=(iterator, tf.constant(SAMPLES), factor)))
        run.start()
        stay_as_taker(places)
        latencies = dequeued(outfeed, wait_first)
        run.join()
    return latencies


def dequeued(outfeed: ipu.IPUOutfeedQueue, wait_first: bool) -> list[float]:
    """Returns the microseconds from the enqueue of each element that this thread waited for until its dequeue.

    With `wait_first`, returns the microseconds of each call instead.
    """
    assert outfeed._feed is not None
    number = outfeed._feed.number
    latencies = []
    last = 0
    for _ in range(SAMPLES):
        is_late = bool(outfeed._read_buffer)  # The queue returned the element together with the previous one.
        while wait_first and not is_late and native.ipu_outfeed_ready(number) == 0:
            time.sleep(PAUSE_US / 1e6)
        begun = time.monotonic_ns()
        while True:
            element = next(iter(outfeed), None)  # A `for` loop would also wait a moment for the next element.
            now = time.monotonic_ns()
            if element is not None:
                break
        woken = begun if wait_first else native.ipu_outfeed_woken_ns(number)
        if woken != last and not is_late:  # Otherwise the element was available before this thread called.
            latencies.append((now - woken) / 1e3)
        last = woken
    return latencies


def percentile(values: Sequence[float], share: int) -> float:
    """Returns the value below which `share` percent of the values are."""
    return sorted(values)[len(values) * share // 100]


OURS = "from enqueue to the dequeuing thread"
NATIVE = "waking a native thread by a condition variable"
PYTHON = "waking a Python thread by a lock"
CALL = "a dequeue of an available element"


def compare(title: str, library: ctypes.CDLL, places: Places) -> None:
    """Measures the outfeed and the wakes of threads in turns, and prints a table."""
    contestants = {
        OURS: lambda: through_a_program(places),
        NATIVE: lambda: between_native_threads(library, places),
        PYTHON: lambda: wakes_of_python(library, places),
    }
    if places is None:
        contestants[CALL] = lambda: through_a_program(places, wait_first=True)
    rounds = [{name: measured() for name, measured in contestants.items()} for _ in range(ROUNDS)]
    pooled = {name: [latency for times in rounds for latency in times[name]] for name in contestants}
    print_table(
        f"{title}: microseconds ({ROUNDS} rounds of {SAMPLES})",
        ("measurement", "median", "90th percentile", "99th percentile"),
        [(name, *(percentile(values, share) for share in (50, 90, 99))) for name, values in pooled.items()],
    )
    print(f"\nthe median is {percentile(pooled[OURS], 50):.0f} us; the target is at most 60\n", flush=True)


def main() -> None:
    """Compares on two processors, on one, and on processors that the system selects."""
    library = native_library()
    first, *second = sorted(os.sched_getaffinity(0))[:2]
    through_a_program(None)
    if second:
        compare("on two processors", library, (first, second[0]))
    compare("on one processor", library, (first, first))
    compare("on processors chosen by the system", library, None)


if __name__ == "__main__":
    main()
