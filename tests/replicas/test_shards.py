"""How many IPUs a program uses is noted while it is traced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu import replicas, scopes


def shards(function: Any) -> int:
    return replicas.shards_of(function.get_concrete_function(tf.constant(1.0)))


def test_a_program_without_shards_uses_one_ipu():
    assert shards(tf.function(lambda x: x + 1.0)) == 1


def test_the_highest_shard_counts_in_loops_too():
    @tf.function
    def function(x):
        for _ in tf.range(3):
            with scopes.ipu_shard([0, 5]):
                x = x + 1.0
        with scopes.ipu_shard(2):
            return x * 2.0

    assert shards(function) == 6


def test_shards_of_a_function_that_was_traced_before_count():
    @tf.function
    def inner(x):
        with scopes.ipu_shard(3):
            return x + 1.0

    assert shards(inner) == 4
    assert shards(tf.function(lambda x: inner(x) * 2.0)) == 4


def test_a_note_outside_of_a_program_goes_nowhere():
    with scopes.ipu_shard(3):
        assert tf.constant(1.0) + 1.0 == 2.0
    assert shards(tf.function(lambda x: x + 1.0)) == 1
