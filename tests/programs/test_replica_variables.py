"""Each replica has a copy of a variable. The host writes all copies, and reads the first."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import keras
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import scopes
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum
from tensorflow_ipu.ops.replication_ops import replication_index


def replica_number() -> Any:
    return tf.cast(replication_index(), tf.float32)


def writing(write: Any) -> Any:
    """Returns a program that writes variables and returns nothing."""

    @tf.function(jit_compile=True)
    def program() -> None:
        write()

    return program


@pytest.fixture
def make(replicas: Any, each: Any) -> Any:
    """Returns a function: `make(4)` makes four replicas.

    It returns their strategy, a variable of 1.0, a program that adds the replicas' numbers, and a function that reads
    the copies.
    """

    def make_replicas(count: int) -> Any:
        strategy = replicas(count)
        with strategy.scope():
            variable = tf.Variable(1.0)

        @tf.function(jit_compile=True)
        def diverge() -> Any:
            variable.assign_add(replica_number())
            return variable.read_value()

        return strategy, variable, diverge, lambda: each(strategy, variable.read_value)

    return make_replicas


def test_checkpoint_holds_the_first_replica_and_leaves_the_others_until_it_is_restored(make, tmp_path):
    """TensorFlow reads a variable for a checkpoint by a different operation."""
    strategy, variable, diverge, read = make(4)
    variable.assign(7.0)
    strategy.run(diverge)
    saved = tf.train.Checkpoint(variable=variable).save(str(tmp_path / "saved"))
    assert read() == [7, 8, 9, 10]
    with strategy.scope():
        tf.train.Checkpoint(variable=variable).restore(saved).assert_consumed()
    assert read() == [7] * 4


# The handle of a variable that passed through a loop of the host counted as written, and replicas were made equal.
def test_replicas_start_equal_diverge_and_keep_their_values_from_run_to_run(make):
    strategy, variable, diverge, read = make(4)
    assert read() == [1] * 4
    for run in range(1, 4):
        assert strategy.run(diverge).numpy() == 1
        assert variable.numpy() == 1
        assert read() == [1, 1 + run, 1 + 2 * run, 1 + 3 * run]

    @tf.function
    def loop(times: Any) -> None:
        for _ in tf.range(times):
            if times > 0:
                strategy.run(diverge)

    loop(tf.constant(4))
    assert read() == [1, 8, 15, 22]


def _scatter(variable: Any) -> None:
    variable.scatter_update(tf.IndexedSlices(tf.constant(5.0), tf.constant(1)))


def _nested(variable: Any) -> None:
    inner = tf.function(lambda: variable.assign([2.0, 5.0]))
    tf.function(lambda: tf.cond(tf.constant(True), inner, lambda: variable.read_value()))()


HOST_WRITES = {
    "assign": lambda variable: variable.assign([2.0, 5.0]),
    "assign_add": lambda variable: variable.assign_add([1.0, 4.0]),
    "assign_sub": lambda variable: variable.assign_sub([-1.0, -4.0]),
    "a slice": lambda variable: variable[1].assign(5.0),
    "scatter": _scatter,
    "a function of the host": lambda variable: tf.function(lambda: variable.assign([2.0, 5.0]))(),
    "a branch of the host": _nested,
}


# Slices and scatters write into an existing buffer, which copies share. The second write shows what the first one
# leaves.
def test_what_the_host_writes_reaches_all_replicas(replicas, each):
    strategy = replicas(3)
    with strategy.scope():
        variable = tf.Variable([0.0, 0.0])
    diverge = writing(lambda: variable.assign_add([replica_number(), replica_number()]))
    read = tf.function(lambda: variable + 0)
    for name, write in HOST_WRITES.items():
        for _ in range(2):
            variable.assign([1.0, 1.0])
            strategy.run(diverge)
            write(variable)
            written = variable.numpy().tolist()
            assert written[1] == 5, name
            strategy.run(diverge)
            assert each(strategy, read) == [[written[0] + i, written[1] + i] for i in range(3)], name
            assert variable.numpy().tolist() == written, name


def test_what_the_host_reads_leaves_replicas_apart(make):
    strategy, variable, diverge, read = make(3)
    strategy.run(diverge)

    @tf.function
    def reads(times: Any) -> Any:
        total = 0.0
        for _ in tf.range(times):
            if total < 10:
                total += variable + tf.identity(variable)
        return total

    assert reads(tf.constant(2)).numpy() == 4
    assert tf.compat.v1.is_variable_initialized(variable)
    strategy.run(tf.function(lambda: variable + 1))
    with tf.GradientTape() as tape:
        loss = variable * variable
    assert tape.gradient(loss, variable).numpy() == 2
    assert read() == [1, 2, 3]


def test_weights_that_keras_loads_reach_all_replicas(replicas, each, tmp_path):
    strategy = replicas(2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1, kernel_initializer="ones")])
    model.save_weights(tmp_path / "saved.weights.h5")
    old_weights = model.get_weights()
    kernel = model.layers[0].kernel
    diverge = writing(lambda: kernel.assign_add([[replica_number()], [2 * replica_number()]]))

    def answer() -> Any:
        return model(tf.ones([1, 2]))[0, 0]

    strategy.run(diverge)
    assert each(strategy, answer) == [2, 5]
    model.load_weights(tmp_path / "saved.weights.h5")
    assert each(strategy, answer) == [2, 2]
    strategy.run(diverge)
    model.set_weights([2 * weights for weights in old_weights])
    assert each(strategy, answer) == [4, 4]


# Replicas kept their old values after a program of all IPUs, which runs as one replica, had written the variable.
def test_what_a_program_of_fewer_replicas_writes_reaches_all(make, each, replicas):
    strategy, variable, diverge, read = make(4)
    for shards in (2, 4):

        @tf.function(jit_compile=True)
        def fewer(shards: int = shards) -> None:
            with scopes.ipu_shard(shards - 1):
                variable.assign_add(10.0)

        old_value = variable.numpy()
        strategy.run(diverge)
        strategy.run(fewer)
        assert variable.numpy() == old_value + 10
        assert read() == [old_value + 10] * 4
    strategy.run(diverge)
    strategy = replicas(1)
    strategy.run(tf.function(lambda: variable.assign_add(1.0), jit_compile=True))
    assert each(replicas(4), lambda: variable + 0) == [22] * 4  # These replicas are configured later.


def test_programs_share_the_copies_of_a_variable(make):
    strategy, variable, diverge, read = make(4)
    double = tf.function(lambda: variable.assign(variable * 2), jit_compile=True)
    second_program = tf.function(lambda argument: argument.assign_add(cross_replica_sum(argument)), jit_compile=True)
    strategy.run(diverge)  # 1 2 3 4
    strategy.run(double)  # 2 4 6 8
    assert strategy.run(second_program, (variable,)).numpy() == 22
    assert read() == [22, 24, 26, 28]


def test_variables_of_any_type_and_one_that_is_made_in_the_first_call_have_copies(replicas, each):
    strategy = replicas(2)
    types = [tf.float16, tf.bfloat16, tf.float64, tf.int8, tf.int32, tf.int64, tf.bool]
    created: list[tf.Variable] = []
    with strategy.scope():
        variables = [tf.Variable(tf.cast([0, 0], dtype)) for dtype in types]

    @tf.function(jit_compile=True)
    def program() -> None:
        for variable in variables:
            variable.assign(tf.cast([0, replication_index()], variable.dtype))
        if not created:
            created.append(tf.Variable(3.0))
        created[0].assign_add(replica_number())

    with strategy.scope():
        strategy.run(program)
        strategy.run(program)
    values = each(strategy, lambda: [created[0] + 0, *(tf.cast(variable, tf.int32) for variable in variables)])
    assert values == [[3, 5], *[[[0, 0], [0, 1]]] * len(types)]


def test_copies_go_with_their_variable(replicas, check_growth):
    strategy = replicas(4)

    def use() -> None:
        with strategy.scope():
            variable = tf.Variable(tf.zeros([2 << 20]))  # 8 MiB, and 32 with the copies.
        strategy.run(writing(lambda: variable.assign_add(tf.fill([2 << 20], replica_number()))))
        assert ops.ipu_replica_read(variable.handle, tf.constant(3, tf.int64), dtype=tf.float32)[0] == 3
        gone.append(weakref.ref(variable))

    def use_often() -> None:
        for _ in range(3):
            use()
            gc.collect()

    gone: list[weakref.ref[Any]] = []
    use()
    check_growth(use_often, 36 << 20)  # With a leak, it would be 3 times 24 MiB more for each pass.
    assert not any(reference() for reference in gone)


def test_a_variable_that_no_program_writes_is_stored_once(replicas, check_growth):
    strategy = replicas(8)
    program = tf.function(lambda variable: cross_replica_sum(tf.reduce_sum(variable)), jit_compile=True)
    variables = []

    def use() -> None:
        with strategy.scope():
            variables.append(tf.Variable(tf.ones([2 << 20])))  # 8 MiB.
        assert strategy.run(program, (variables[-1],)).numpy() == 8 * (2 << 20)

    check_growth(use, 32 << 20)  # With a leak, it would be 64 MiB.


# A session's devices destroyed variables and copies at the same time, which crashed the process.
def test_session_writes_reach_all_replicas_and_sessions_close_with_copies_of_many_variables(replicas):
    replicas(4)
    for _ in range(2):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            with scopes.ipu_scope("/device:IPU:0"):
                weights = [tf.compat.v1.get_variable(f"w{i}", initializer=1.0, use_resource=True) for i in range(20)]
                diverge = ipu.compiler.compile(
                    lambda weights=weights: [
                        *(w.assign_add(replica_number()) for w in weights),
                        cross_replica_sum(weights[0]),
                    ],
                    [],
                )
            feed = tf.compat.v1.placeholder(tf.float32, [])
            write, initialize = weights[0].assign(feed), tf.compat.v1.global_variables_initializer()
            session.run(initialize)
            assert [session.run(diverge)[-1] for _ in range(2)] == [4 + 6, 4 + 12]
            session.run(write, {feed: 5.0})
            assert session.run(diverge)[-1] == 20 + 6
            assert session.run(weights[0]) == 5
            session.run(initialize)
            assert session.run(diverge)[-1] == 4 + 6
