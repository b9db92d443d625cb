"""Programs that XLA cannot compile: the error names the operation, its layer and line, and an alternative."""

from __future__ import annotations

import re
import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu import compiler, loops, scopes
from tensorflow_ipu.feeds import IPUInfeedQueue
from tensorflow_ipu.ops.functional_ops import outlined_function

ONE = tf.constant([1.0])


def prints(x: Any) -> Any:
    return tf.compat.v1.Print(x, [x], "x is") + 1


def writes_strings(x: Any) -> Any:
    return x + tf.strings.to_number(tf.strings.as_string(x))


def calls_numpy(x: Any) -> Any:
    return tf.numpy_function(lambda a: a + 1, [x], tf.float32)


def calls_python_in_a_loop(x: Any) -> Any:
    for _ in tf.range(3):
        x = tf.ensure_shape(tf.py_function(lambda a: a + 1, [x], tf.float32), [1])
    return x


def reads_a_dataset(x: Any) -> Any:
    for value in tf.data.Dataset.range(3):
        x += tf.cast(value, tf.float32)
    return x


def counts_values(x: Any) -> Any:
    with tf.name_scope("counter"):
        return tf.histogram_fixed_width(x, [0.0, 1.0])


def branches(x: Any) -> Any:
    return tf.cond(tf.reduce_all(x > 0), lambda: writes_strings(x), lambda: x)


def forgets(x: Any) -> Any:
    tf.strings.as_string(x)
    return x


WRITER = tf.summary.create_file_writer(tempfile.mkdtemp())


def summarizes(x: Any) -> Any:
    with WRITER.as_default(step=1):
        tf.summary.scalar("loss", x[0])
    return x


PLACE = r"at \S*test_uncompilable.py:\d+"
PRINT = (
    rf"a print \(`Print`\).*, {PLACE} \(`return tf.compat.v1.Print\(.* by `tf.print`, or `internal_ops.print_tensor`"
)
REFUSED = [
    (prints, PRINT),
    (writes_strings, rf"strings \(`AsString`, `StringToNumber`\), {PLACE} .*turn them to numbers .*`dataset.map`"),
    (
        calls_numpy,
        rf"a Python function, .* \(`PyFunc`\), {PLACE} .*operations, or call it where .*outside_compilation_scope",
    ),
    (calls_python_in_a_loop, rf"a Python function, .* \(`EagerPyFunc`\), {PLACE} \(`x = tf.ensure_shape\("),
    (
        reads_a_dataset,
        rf"a dataset \(`RangeDataset`.*, {PLACE} \(`for value.*outside of the program.*`iter\(dataset\)`",
    ),
    (
        counts_values,
        rf"`HistogramFixedWidth` in scope `counter`, {PLACE} .*\(`dataset.map`\), or let the host .*outside_compilation_scope",
    ),
    (branches, rf"strings \(`AsString`, `StringToNumber`\), {PLACE} \(`return x "),
    (
        summarizes,
        rf"these operations:\n  - `tf.summary` \(`WriteSummary`\) in scope `loss`, {PLACE} \(`tf.summary.scalar",
    ),
    (forgets, rf"strings \(`AsString`\), {PLACE} \(`tf.strings.as_string\(x\)`\)"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_run_names_the_operation_the_line_and_the_way_out(function, message, strategy):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"compiled by XLA, which has no kernel for {message}"):
        strategy.run(tf.function(function), (ONE,))


def test_all_are_named_in_their_order_by_each_way_to_run(replicas):
    message = r"operations:\n  - a print .*\n  - a Python function.*\n  - `Hist"
    every = tf.function(lambda x: counts_values(calls_numpy(prints(x))))
    for ipus in (1, 2):
        strategy = replicas(ipus)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            strategy.run(every, (ONE,))
        with pytest.raises(tf.errors.InvalidArgumentError, match=PRINT):
            tf.function(lambda x: strategy.run(tf.function(prints), (x,))).get_concrete_function(ONE)  # noqa: B023
    with pytest.raises(tf.errors.InvalidArgumentError, match=PRINT), scopes.ipu_scope("/device:IPU:0"):
        compiler.compile(prints, [ONE])
    with tf.Graph().as_default(), scopes.ipu_scope("/device:IPU:0"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=PRINT):
            compiler.compile(prints, [tf.constant([1.0])])
        compiler.compile(lambda x: x + 1, [tf.constant([1.0])])


def test_graphs_are_not_refused_for_what_no_result_needs_or_what_xla_folds():
    with_unused = tf.function(lambda x: (tf.strings.as_string(x), x + 1))

    def computation(x: Any) -> Any:
        tf.debugging.assert_positive(x, "not positive")
        return with_unused(x)[1] + tf.cast(tf.strings.length(tf.constant("abc")), tf.float32)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with scopes.ipu_scope("/device:IPU:0"):
            results = compiler.compile(computation, [tf.constant([1.0])])
        assert session.run(results)[0].tolist() == [5]


# XLA:CPU has bounds for such shapes, so these programs ran. No machine would run them.
def test_shapes_that_depend_on_data_are_refused_and_those_that_xla_knows_are_not(strategy):
    counts = IPUInfeedQueue(tf.data.Dataset.from_tensors(1).repeat())
    message = (
        "static shapes, and the shape of the result of `{}`.*, " + PLACE + r" \(`.*`\), depends on data. Instead, {}"
    )
    for kind, way_out, function in (
        ("Where", "keep all", lambda x: tf.reduce_sum(tf.gather(x, tf.where(x > 0)))),
        ("Where", "keep all", lambda x: tf.boolean_mask(x, x > 0)),
        ("Unique", "keep all", lambda x: tf.unique(x).y),
        ("DynamicPartition", "keep all", lambda x: tf.dynamic_partition(x, tf.cast(x > 0, tf.int32), 2)),
        (
            "StridedSlice",
            "pass a Python number",
            lambda x: loops.repeat(2, lambda x, count: x + tf.reduce_sum(x[:count]), [x], counts),
        ),
    ):
        program = tf.function(function, autograph=False)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message.format(kind, way_out)):
            strategy.run(program, (ONE,))
        if kind != "StridedSlice":
            with pytest.raises(tf.errors.InvalidArgumentError, match=message.format(kind, way_out)):
                strategy.report(program, (ONE,))
            with pytest.raises(tf.errors.InvalidArgumentError, match=message.format(kind, way_out)):
                tf.function(lambda x: strategy.run(program, (x,)), autograph=False).get_concrete_function(ONE)  # noqa: B023

    def legal(x: Any, n: Any) -> Any:
        tf.where(x > 0)  # The result is unused.
        with scopes.outside_compilation_scope():
            positive = tf.reduce_sum(tf.boolean_mask(x, x > 0))
        chosen = tf.boolean_mask(x, tf.constant([True, False, True]))
        return tf.where(x > 2, x, 0), positive, chosen, x[: tf.shape(x)[0] // 2], x[:n], tf.zeros([n])

    x = tf.constant([1.0, 2.0, 3.0])
    for run in (strategy.run, tf.function(strategy.run)):
        results = [value.numpy().tolist() for value in run(tf.function(legal, autograph=False), (x, tf.constant(2)))]
        assert results == [[0, 0, 3], 6, [1, 3], [1], [1, 2], [0, 0]]


class Printing(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return prints(x)


@pytest.mark.parametrize("stages", [None, [0, 0, 1, 1]])
def test_layer_that_cannot_be_compiled_is_named_with_the_way_out(stages, replicas):
    strategy = replicas(1 if stages is None else 2)
    x, y = np.zeros([8, 4, 4, 3], np.float32), np.zeros([8, 1], np.float32)
    with strategy.scope():
        turn = keras.layers.RandomRotation(0.1, name="turn")
        model = keras.Sequential([turn, keras.layers.Flatten(), Printing(name="own"), keras.layers.Dense(1)])
        model.build([None, 4, 4, 3])
        model.compile(loss="mse", steps_per_execution=4)
        if stages is not None:
            model.set_pipeline_stage_assignment(stages)
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        model.fit(x, y, batch_size=2, verbose=0)
    rotation, printing = sorted(str(info.value).splitlines()[1:])
    assert "`ImageProjectiveTransformV3` in layer `turn`" in rotation
    assert "take the layer out of the model, and call it where the data is made: `dataset.map(" in rotation
    assert "a print (`Print`) in layer `own`" in printing
    assert re.search(PRINT, printing)
    for use in (lambda: model.evaluate(x, y, batch_size=2, verbose=0), lambda: model.predict(x, 2, verbose=0)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="in layer `own`") as info:
            use()
        assert "`turn`" not in str(info.value)  # The layer rotates nothing in these modes.


class Repeating(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.zeros([tf.cast(tf.reduce_sum(x), tf.int32), 1])


@pytest.mark.parametrize("wrap", [lambda call: call, tf.function, lambda call: outlined_function(tf.function(call))])
def test_shape_that_depends_on_data_is_named_with_the_way_out(wrap, strategy):
    with strategy.scope():
        elements = iter(tf.data.Dataset.from_tensors(tf.ones([2, 3])).repeat())
        layer = wrap(Repeating(name="repeating"))

    @tf.function
    def program(elements: Any) -> Any:
        total = 0.0
        for _ in tf.range(2):
            total += tf.reduce_sum(layer(next(elements)))
        return total

    message = (
        rf"static shapes, and input 0 of `Fill` in layer `repeating`, {PLACE} \(`return tf.zeros\(.*mask what does"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        strategy.run(program, (elements,))


def test_strings_are_refused_as_inputs_and_outputs(strategy):
    with pytest.raises(TypeError, match=r"Unsupported data type for input: string \(`x:0` .*turn them to numbers"):
        strategy.run(tf.function(lambda x: 1.0), (tf.constant("a"),))
    with pytest.raises(TypeError, match=r"Unsupported data type for output: string .*turn them to numbers"):
        strategy.run(tf.function(lambda: tf.constant("a")))
