"""Parts of programs that the host runs: inputs and results, order, replicas, gradients, failures, and ends of runs."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compiler, scopes
from tensorflow_ipu.ops.replication_ops import replication_index

outside = scopes.outside_compilation_scope
X = tf.constant([1.0, 2.0, 3.0])


def table():
    pairs = tf.lookup.KeyValueTensorInitializer([1, 2], ["one", "three"], tf.int32, tf.string)
    return tf.lookup.StaticHashTable(pairs, "nothing")


def length_of(strings, keys):
    with outside("words"):
        return tf.ensure_shape(tf.strings.length(strings.lookup(keys)), keys.shape)


def test_table_strings_and_python_work_in_loops_and_branches(strategy):
    strings, doubled = table(), []

    def double(x):
        doubled.append(x.numpy().tolist())
        return 2 * x

    @tf.function(jit_compile=True)
    def program(keys, x):
        total = tf.zeros([], tf.int32)
        for step in tf.range(3):
            total += tf.reduce_sum(length_of(strings, keys + step))
            if step == 1:
                with outside():
                    x = tf.ensure_shape(tf.py_function(double, [x], tf.float32), [3])
        return total, x

    total, x = strategy.run(program, (tf.constant([0, 1]), X))
    assert total.numpy() == (7 + 3) + (3 + 5) + (5 + 7)
    np.testing.assert_array_equal(x, [2, 4, 6])
    assert doubled == [[1, 2, 3]]


def test_results_variables_and_queues_are_as_the_order_of_the_program_has_them(strategy):
    with strategy.scope():
        variable = tf.Variable(1.0)
    with tf.device("/device:CPU:0"):
        host = tf.Variable(0.0)
    outfeed = ipu.IPUOutfeedQueue()
    lengths = []

    def look():
        lengths.append(len(outfeed.dequeue()))
        return np.int32(0)

    @tf.function(jit_compile=True)
    def program(x):
        with outside():
            y = x + 1
            z = y * 2
        for step in tf.range(3):
            x += y
            variable.assign_add(1.0)
            outfeed.enqueue(step)
            with outside():
                host.assign(10 * host + variable)
                tf.numpy_function(look, [], tf.int32)
        with outside():
            z = z + y
        return x, tf.cond(x[0] > 0, lambda: z, lambda: x)

    x, z = strategy.run(program, (X,))
    np.testing.assert_array_equal(x, [7, 11, 15])
    np.testing.assert_array_equal(z, [6, 9, 12])
    assert (variable.numpy(), host.numpy(), lengths) == (4, 234, [1, 1, 1])


def test_gradients_flow_through_in_tapes_loops_and_graphs_and_are_zero_of_what_leaves_tensorflow(strategy):
    def cubed(x):
        with outside("cube"):
            squared = x * x
            cube = tf.ensure_shape(tf.py_function(lambda a, b: a * b, [squared, x], tf.float32), [3])
        return x * cube

    def through_a_loop(x):
        y = x
        for _ in tf.range(2):
            with outside():
                y = tf.sin(y) * x
        return y

    def leaving(x):  # TensorFlow returns a scalar zero as its gradient, whatever the shape.
        with outside():
            y = tf.ensure_shape(tf.py_function(lambda a: 2 * a.numpy(), [x], tf.float32), [3])
        return x * y

    @tf.function(jit_compile=True)
    def program(x):
        gradients = [tf.gradients(cubed(x), x)[0]]
        for function in (cubed, tf.autograph.to_graph(through_a_loop), leaving):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            gradients.append(tape.gradient(y, x))
        return gradients

    with tf.GradientTape() as tape:
        tape.watch(X)
        y = tf.sin(tf.sin(X) * X) * X
    expected = [4 * X**3, 4 * X**3, tape.gradient(y, X), 2 * X]
    np.testing.assert_allclose(strategy.run(program, (X,)), expected, rtol=1e-5)


def test_session_has_tables_and_functions_of_its_own():
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        strings = table()
        keys = v1.placeholder(tf.int32, [3])
        with scopes.ipu_scope("/device:IPU:0"):
            (lengths,) = compiler.compile(lambda keys: 2 * length_of(strings, keys), [keys])
        for _ in range(2):
            with v1.Session() as session:
                session.run(v1.tables_initializer())
                for fed, expected in (([1, 2, 3], [6, 10, 14]), ([2, 2, 2], [10, 10, 10])):
                    assert session.run(lengths, {keys: fed}).tolist() == expected


def test_session_closed_while_the_host_works_ends_the_run_when_that_work_ends():
    v1 = tf.compat.v1
    working, goes_on = threading.Event(), threading.Event()

    def work(x):
        working.set()
        assert goes_on.wait(60)
        return x + 1

    with tf.Graph().as_default():
        strings = table()

        def program():
            with outside():
                key = tf.ensure_shape(tf.numpy_function(work, [1], tf.int32), [])
                return tf.strings.length(strings.lookup(key))  # The table of the closed session.

        with scopes.ipu_scope("/device:IPU:0"):
            (length,) = compiler.compile(program)
        session = v1.Session()
        session.run(v1.tables_initializer())
        with ThreadPoolExecutor() as threads:
            run = threads.submit(session.run, length)
            assert working.wait(60)
            closing = threads.submit(session.close)  # It waits for the run, which only `work` can end now.
            goes_on.set()
            closing.result(60)
            assert isinstance(run.exception(60), tf.errors.CancelledError) or run.result() == 5
        with v1.Session() as another:
            another.run(v1.tables_initializer())
            assert another.run(length) == 5


def test_summaries_are_written_in_the_programs_order(replicas, tmp_path):
    strategy = replicas(2)
    writer = tf.summary.create_file_writer(str(tmp_path))

    @tf.function(jit_compile=True)
    def program():
        for step in tf.range(3):
            with outside(), writer.as_default(tf.cast(step, tf.int64)):
                tf.summary.scalar("double", 2 * step + 10 * replication_index())

    strategy.run(program)
    writer.close()
    (file,) = tmp_path.iterdir()
    written = [
        (event.step, tf.make_ndarray(value.tensor).item())
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    ]
    for replica in range(2):
        assert [entry for entry in written if entry[1] // 10 == replica] == [
            (n, 2 * n + 10 * replica) for n in range(3)
        ]
    assert len(written) == 3 * 2


def test_failure_is_the_runs_with_the_name_and_the_line(replicas):
    strategy = replicas(2)

    def refuse(x):
        raise ValueError(f"{x} is too much")

    @tf.function(jit_compile=True)
    def program(x, limit):
        for _ in tf.range(4):
            with outside("careful"):
                if x[0] > limit:
                    tf.numpy_function(refuse, [x], [])
            x += 1
        return x

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)careful`.*is too much") as failure:
        strategy.run(program, (X, tf.constant(2.0)))
    assert re.search(r"IpuHostCall `(\S+/)?careful` \(\S*test_host_callbacks.py:\d+\)", str(failure.value))
    np.testing.assert_array_equal(strategy.run(program, (X, tf.constant(9.0))), [5, 6, 7])


def test_ctrl_c_ends_the_run_when_what_the_host_does_ends(run_script):
    done = run_script(
        """
        import os, signal, threading
        import tensorflow as tf
        import tensorflow_ipu as ipu

        calls = []

        def work():
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGINT)

        @tf.function(jit_compile=True)
        def program():
            for _ in tf.range(1_000_000_000):
                with ipu.scopes.outside_compilation_scope():
                    tf.py_function(work, [], [])

        try:
            ipu.IPUStrategy().run(program)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert done.stdout.split() == ["interrupted"]


def test_runs_of_two_devices_whose_host_waits_for_each_other_both_end(replicas):
    strategies = replicas(1, 1), ipu.IPUStrategy("/device:IPU:1")
    met = threading.Barrier(2, timeout=60)

    def program():
        with outside():
            tf.numpy_function(lambda: [met.wait()][:0], [], [])
        return tf.constant(1)

    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(strategy.run, tf.function(program, jit_compile=True)) for strategy in strategies]
        assert [run.result(120).numpy() for run in runs] == [1, 1]


def test_program_refuses_strings_and_unknown_shapes_across_the_border(strategy, refused):
    def on_host(function, *args):
        with outside():
            return function(*args)

    with strategy.scope():
        variable = tf.Variable(X)
    outfeed, text, length = ipu.IPUOutfeedQueue(), tf.strings.as_string, tf.strings.length
    for function, message in (
        (
            lambda x: length(on_host(text, x)),
            "of type string is created in .*: only numbers and booleans can enter or leave",
        ),
        (
            lambda x: on_host(length, text(x)),
            "of type string belongs to the program, .*: only numbers and booleans can enter",
        ),
        (
            lambda x: 1 + on_host(tf.py_function, lambda a: a, [x], tf.float32),
            r"created in an `outside_compilation_scope`.* static.*`tf.ensure_shape`",
        ),
        (lambda x: on_host(variable.assign, x), "`AssignVariableOp` uses a variable of the IPU"),
        (
            lambda x: on_host(outfeed.enqueue, x),
            "`IpuOutfeedEnqueue` is not supported in an `outside_compilation_scope`",
        ),
        (lambda x: on_host(on_host, tf.identity, x), "Illegal nesting"),
    ):
        refused(ValueError, message, strategy.run, tf.function(function, jit_compile=True), (X,))


def test_table_of_any_device_is_looked_up_though_the_program_alone_holds_it(strategy):
    def program_with_table(device):
        with strategy.scope(), tf.device(device):
            strings = table()
        return tf.function(lambda keys: length_of(strings, keys), jit_compile=True)

    for program in (program_with_table("/device:CPU:0"), program_with_table("/device:IPU:0")):
        for _ in range(2):
            assert strategy.run(program, (tf.constant([1, 2, 3]),)).numpy().tolist() == [3, 5, 7]
