"""How long an element takes from the program's enqueue to the thread that dequeues it, beside what threads take bare."""

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

# Between two elements; a thread that has just slept is woken sooner than one that has slept for long.
PAUSE_US = 300

# What a giver does behind each element, as a program that goes on: it does not make room for the one that it woke.
WORK_US = 60

# A product of such matrices takes about as long.
WORK_SIZE = 128

# A thread gives a turn to another, which sleeps until then and notes how long it took.
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

# Where the giver and the taker run; None where the system is free to choose.
Places = tuple[int, int] | None


@contextmanager
def placed(places: Places) -> Iterator[None]:
    """Has all threads of the process, and those that they start, run on the giver's processor, but for the caller."""
    before = os.sched_getaffinity(0)

    def all_on(processors: set[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # It has ended.
                os.sched_setaffinity(int(thread), processors)

    if places is not None:
        all_on({places[0]})
    yield
    all_on(before)


def stay_as_taker(places: Places) -> None:
    """Has the calling thread run on the taker's processor."""
    if places is not None:
        os.sched_setaffinity(0, {places[1]})


def native_library() -> ctypes.CDLL:
    """The compiled hand-over."""
    source = pathlib.Path(tempfile.mkdtemp(), "hand_overs.cc")
    source.write_text(HAND_OVERS)
    return ctypes.CDLL(compile_user_operation(source))


def between_native_threads(library: ctypes.CDLL, places: Places) -> list[float]:
    """Microseconds from a native thread to another by a condition variable."""
    found = (ctypes.c_double * SAMPLES)()
    library.HandOvers(*map(ctypes.c_int64, (SAMPLES, PAUSE_US, WORK_US, *(places or (-1, -1)))), found)
    return list(found)


def wakes_of_python(library: ctypes.CDLL, places: Places) -> list[float]:
    """Microseconds from a Python thread's release of a lock to another's that waits for it."""
    turn = threading.Lock()
    turn.acquire()
    given = 0

    def give() -> None:
        nonlocal given
        for _ in range(SAMPLES):
            time.sleep(PAUSE_US / 1e6)
            while not turn.locked():  # The other thread was late.
                time.sleep(PAUSE_US / 1e6)
            given = time.monotonic_ns()
            turn.release()
            library.GoOn(ctypes.c_int64(WORK_US))  # Without the interpreter's lock.

    found = []
    with placed(places):
        giver = threading.Thread(target=give)
        giver.start()
        stay_as_taker(places)
        for _ in range(SAMPLES):
            turn.acquire()
            found.append((time.monotonic_ns() - given) / 1e3)
        giver.join()
    return found


def numbers() -> tf.data.Dataset:
    """Numbers with a pause before each. It is TensorFlow's own: a generator of Python would take the interpreter's lock."""
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
    """Microseconds of the last part of the way of elements that go through a program, a pause between two of them.

    Args:
      places: Where the program, and whatever else the process does, and the thread that dequeues run.
      wait_first: Whether to ask for an element when it is there, and time the call alone.
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
    """Microseconds to each element that this thread waited for, or with `wait_first` of each call."""
    assert outfeed._feed is not None
    number = outfeed._feed.number
    latencies = []
    last = 0
    for _ in range(SAMPLES):
        taken_along = bool(outfeed._read_buffer)  # With the one before: this thread was late.
        while wait_first and not taken_along and native.ipu_outfeed_ready(number) == 0:
            time.sleep(PAUSE_US / 1e6)
        begun = time.monotonic_ns()
        while True:
            element = next(iter(outfeed), None)  # A loop would go on, and wait a moment for the next one.
            now = time.monotonic_ns()
            if element is not None:
                break
        woken = begun if wait_first else native.ipu_outfeed_woken_ns(number)
        if woken != last and not taken_along:  # Else the element was there before this thread asked.
            latencies.append((now - woken) / 1e3)
        last = woken
    return latencies


def percentile(values: Sequence[float], share: int) -> float:
    """The value that so many of a hundred are below."""
    return sorted(values)[len(values) * share // 100]


OURS = "from enqueue to the dequeuing thread"
NATIVE = "a condition variable, native threads"
PYTHON = "the wake of a Python thread"
CALL = "the same call where the element is there"


def compare(title: str, library: ctypes.CDLL, places: Places) -> None:
    """Takes turns between the bare hand-overs and ours, and prints them."""
    contestants = {
        OURS: lambda: through_a_program(places),
        NATIVE: lambda: between_native_threads(library, places),
        PYTHON: lambda: wakes_of_python(library, places),
    }
    if places is None:
        contestants[CALL] = lambda: through_a_program(places, wait_first=True)
    rounds = [{name: measured() for name, measured in contestants.items()} for _ in range(ROUNDS)]
    pooled = {name: [one for each in rounds for one in each[name]] for name in contestants}
    print_table(
        f"{title}: microseconds ({ROUNDS} rounds of {SAMPLES})",
        ("what", "median", "90th percentile", "99th percentile"),
        [(name, *(percentile(values, share) for share in (50, 90, 99))) for name, values in pooled.items()],
    )
    print(f"\nthe median is {percentile(pooled[OURS], 50):.0f} us; the target is at most 60\n", flush=True)


def main() -> None:
    """Compares on two processors, on one, and where the system is free to choose."""
    library = native_library()
    first, *others = sorted(os.sched_getaffinity(0))
    through_a_program(None)
    if others:
        compare("on two processors", library, (first, others[0]))
    compare("on one processor", library, (first, first))
    compare("where the system puts them", library, None)


if __name__ == "__main__":
    main()
