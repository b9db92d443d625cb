"""What a program has in memory at a time, by hand."""

import dataclasses

import pytest
import tensorflow as tf

from tensorflow_ipu.machine import GC200
from tensorflow_ipu.machine._hlo import read
from tensorflow_ipu.machine._liveness import peak_of
from tensorflow_ipu.machine._memory import _thinned

KIB = tf.zeros([256])  # 1 KiB of float32.


def chain(x):
    return tf.exp(tf.exp(tf.exp(tf.reverse(x, [0]))))


def used_later(x):
    first = tf.reverse(x, [0])
    second = tf.reverse(tf.sin(first), [0])  # `first` is needed below: the sine has a place of its own.
    return second + first


def loop(x):
    x = tf.reverse(x, [0])
    for _ in tf.range(10):
        x = tf.reverse(x, [0]) + x
    return x


def stack(x):
    stack = tf.TensorArray(tf.float32, 10)
    for i in tf.range(10):
        stack = stack.write(i, tf.reverse(x, [0]))
    return stack.stack()


def transposed(x):
    return tf.exp(tf.transpose(tf.reverse(tf.reshape(x, [16, 16]), [0])))


def cast_that_a_reduction_reads(x):
    return tf.reduce_sum(tf.cast(tf.reverse(x, [0]), tf.float32))


def choice_to_update(x):  # As if losses that are scaled were not finite: then nothing is updated.
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: (x - 1.0, 1.0), lambda: (x, 0.0))


def choice_of_two(x):
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.reverse(x, [0]), lambda: tf.exp(tf.reverse(x, [0])))


@pytest.mark.parametrize(
    ("function", "argument", "low", "high"),
    [
        (chain, KIB, 1024, 1024),
        (used_later, KIB, 3 * 1024, 3 * 1024),
        (lambda x: x + 1.0, KIB, 0, 0),  # In the place of a parameter that nobody uses later.
        (loop, KIB, 2 * 1024, 3 * 1024),  # Its value, and what an iteration makes of it.
        (stack, KIB, 10 * 1024, 13 * 1024),
        (transposed, KIB, 1024, 1024),
        (cast_that_a_reduction_reads, tf.zeros([512], tf.float16), 0, 1024 + 16),
        (choice_to_update, KIB, 0, 64),
        (choice_of_two, KIB, 1024, 2 * 1024 + 64),
    ],
)
def test_what_works_in_one_place_counts_once(hlo, function, argument, low, high):
    assert low <= peak_of(read(hlo(function, argument)), GC200, 0.6).bytes <= high


def test_variables_and_arguments_are_held_all_the_time(report):
    weights = tf.Variable(tf.zeros([100, 100]))
    made = report(lambda x: x @ weights, tf.zeros([8, 100]))
    assert made.memory.variables == 4 * (100 * 100 + 8 * 100)


def test_verdicts(report):
    memory = report(lambda x: x @ x, tf.zeros([64, 64])).memory
    assert memory.verdict == "fits"
    assert memory.low < memory.high < memory.capacity
    size = memory.capacity
    assert dataclasses.replace(memory, variables=int(1.3 * size)).verdict == "does not fit"
    assert dataclasses.replace(memory, variables=int(0.95 * size)).verdict == "may fit"


def test_a_program_too_large_does_not_fit(report):
    made = report(lambda x: tf.reverse(x, [0]), tf.TensorSpec([240 * 2**20]))
    assert made.fits is False
    assert "does not fit" in str(made)


def test_the_largest_are_named(report):
    def function(x):
        with tf.name_scope("here"):
            return tf.reverse(x, [0])

    (name, size), *_ = report(function, tf.zeros([2**20])).memory.largest
    assert "here/Reverse" in name
    assert size == 4 * 2**20


def test_the_profile_has_the_peak_and_runs_loops_once(report):
    memory = report(lambda x: tf.concat([loop(x), x], 0), KIB).memory
    places, sizes = zip(*memory.liveness, strict=True)
    assert list(places) == sorted(places)
    assert max(sizes) == memory.data
    assert len(places) < 30


def test_a_long_profile_is_thinned_and_keeps_its_peak():
    profile = [*range(1000), 5000, *range(1000)]
    points = _thinned(profile)
    assert len(points) <= 400
    assert (1000, 5000) in points
    assert _thinned([]) == ()
