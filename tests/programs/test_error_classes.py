"""The message and the class of each error, for each way to run a program, as in `observing.md`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compiler, loops, scopes
from tensorflow_ipu._tensorflow import op_errors, patches

v1: Any = tf.compat.v1
IPU = "/device:IPU:0"
ALL, LAST = ipu.IPUOutfeedMode
# TensorFlow's additions to the message of an operation, and the names of operations in it.
AROUND = r"__wrapped__|\[Op:|Graph execution error|Detected at|root error|\[\[(\{\{node )?[\w/]*Ipu|__inference_"

ENDED = r"The dataset of the infeed queue `\S+` ended after 2 elements"
NOT_STARTED = r"The infeed queue `\S+` has no dataset iterator"
NO_VALUE = r"The outfeed queue `\S+` of mode `IPUOutfeedMode.LAST` has no value to dequeue"
DELETED = r"There is no outfeed queue with number \d+: it was deleted"
ASSERTION = r"Assert `.*assertion failed: \[it is too large\]"
ELSEWHERE = rf"The program uses a queue or a state variable of `{IPU}`, but was called on `/device:CPU:0`"
NOT_COMPILED = "`IpuInfeedDequeue` runs only in a compiled program"
DATA = r"(Error in user-defined function .*: )?assertion failed: \[too large\]"


def two_floats(dataset_type: Any = tf.data.Dataset) -> Any:
    return dataset_type.range(2).map(lambda x: tf.cast(x, tf.float32))


def small(x: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_less(x, 1.0, "too large")]):
        return tf.identity(x)


def queue(started: bool = True, check: Callable[[Any], Any] = tf.identity) -> ipu.IPUInfeedQueue:
    infeed = ipu.IPUInfeedQueue(two_floats().map(check))
    if started:
        infeed.initializer  # noqa: B018  (The property starts it.)
    return infeed


def summing(infeed: Any, jit_compile: bool = True) -> Any:
    """Returns a program that needs more elements than exist."""
    return tf.function(lambda: loops.repeat(5, lambda x: x + infeed._dequeue(), [0.0]), jit_compile=jit_compile)


def asserts(x: Any) -> Any:
    tf.debugging.assert_less(x, 2.0, "it is too large")
    return x + 1.0


def run(program: Callable[[], Any], *args: float) -> Callable[[Any], None]:
    return lambda strategy: strategy.run(program(), [tf.constant(value) for value in args])


def nested(strategy: Any) -> None:
    inner = tf.function(lambda x: strategy.run(tf.function(asserts, jit_compile=True), [x]))
    tf.function(lambda x: inner(x) * 2.0)(tf.constant(3.0))


def assertion_in_session(_: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [])
        with scopes.ipu_scope(IPU):
            result = compiler.compile(asserts, [x])
        session.run(result, {x: 3.0})


def assertion_of_model(strategy: Any) -> None:
    def loss(y: Any, predicted: Any) -> Any:
        asserts(tf.reduce_max(y))
        return tf.reduce_mean((y - predicted) ** 2)

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", loss, steps_per_execution=2)
    model.fit(tf.ones([4, 3]), 3 * tf.ones([4, 1]), batch_size=1, verbose=0)


def prepared(strategy: Any) -> None:
    strategy.prepare(summing(queue(started=False))).run()


def iterator(strategy: Any) -> None:
    with strategy.scope():
        elements, program = iter(two_floats()), tf.function(lambda elements: next(elements), jit_compile=True)
        for _ in range(3):
            strategy.run(program, (elements,))


def plain_call(jit_compile: bool) -> Callable[[Any], None]:
    def call(strategy: Any) -> None:
        program = summing(queue(), jit_compile)
        with strategy.scope():
            program()

    return call


def function_around(check: Callable[[Any], Any]) -> Callable[[Any], None]:
    def call(strategy: Any) -> None:
        program = summing(queue(check=check))
        tf.function(lambda: strategy.run(program))()

    return call


def loop_around(strategy: Any) -> None:
    program = summing(queue())

    @tf.function
    def around() -> Any:
        return tf.while_loop(lambda i: i < 3, lambda i: (i + 1 + tf.cast(0 * strategy.run(program), tf.int32),), [0])

    around()


def dequeue(mode: ipu.IPUOutfeedMode, end: Callable[[ipu.IPUOutfeedQueue], Any]) -> Callable[[Any], None]:
    def call(strategy: Any) -> None:
        outfeed = ipu.IPUOutfeedQueue(mode)
        strategy.run(tf.function(lambda x: outfeed.enqueue(x) and None, jit_compile=True), (tf.constant(1.0),))
        end(outfeed)
        outfeed.dequeue()

    return call


def in_session(started: bool = True, check: Callable[[Any], Any] = tf.identity) -> Callable[[Any], None]:
    def call(_: Any) -> None:
        with tf.Graph().as_default():
            infeed = ipu.IPUInfeedQueue(two_floats(v1.data.Dataset).map(check))
            with scopes.ipu_scope(IPU):
                [total] = compiler.compile(lambda: loops.repeat(5, lambda x, y: x + y, [0.0], infeed), [])
            with v1.Session() as session:
                if started:
                    session.run(infeed.initializer)
                try:
                    session.run([total, total + 1.0])
                finally:
                    if started:
                        session.run(infeed.deleter)

    return call


def dequeue_in_session(_: Any) -> None:
    with tf.Graph().as_default():
        outfeed = ipu.IPUOutfeedQueue(LAST)
        with scopes.ipu_scope(IPU):
            enqueued = compiler.compile(outfeed.enqueue, [tf.constant(1.0)])
        taken = outfeed.dequeue()
        with v1.Session() as session:
            session.run(enqueued)
            session.run(taken)
            session.run(taken)


def of_model(method: str, **options: Any) -> Callable[[Any], None]:
    def element(x: Any) -> Any:
        x = tf.reshape(small(x - 2.0), [1])
        return x if method == "predict" else (x, x)

    def call(strategy: Any) -> None:
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse", steps_per_execution=2)
            elements = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.float32)).map(element)
            getattr(model, method)(elements.batch(1, drop_remainder=True), verbose=0, **options)

    return call


def numbers_that_stop(_: Any) -> None:
    config = ipu.IPUConfig()
    config.floating_point_behaviour.inv = True
    ipu.config.reset_ipu_configuration()
    config.configure_ipu_system()
    ipu.IPUStrategy().run(tf.function(tf.math.log, jit_compile=True), (tf.constant(-1.0),))


WAYS: list[tuple[Callable[[Any], None], type[tf.errors.OpError], str]] = [
    (iterator, tf.errors.OutOfRangeError, ENDED),
    (run(lambda: summing(queue())), tf.errors.OutOfRangeError, ENDED),
    (run(lambda: summing(queue(check=small))), tf.errors.InvalidArgumentError, DATA),
    (run(lambda: tf.function(asserts, jit_compile=True), 3.0), tf.errors.InvalidArgumentError, ASSERTION),
    (nested, tf.errors.InvalidArgumentError, ASSERTION),
    (assertion_in_session, tf.errors.InvalidArgumentError, ASSERTION),
    (assertion_of_model, tf.errors.InvalidArgumentError, ASSERTION),
    (prepared, tf.errors.FailedPreconditionError, NOT_STARTED),
    (plain_call(jit_compile=True), tf.errors.InvalidArgumentError, ELSEWHERE),
    (plain_call(jit_compile=False), tf.errors.FailedPreconditionError, NOT_COMPILED),
    (function_around(tf.identity), tf.errors.OutOfRangeError, ENDED),
    (function_around(small), tf.errors.InvalidArgumentError, DATA),
    (loop_around, tf.errors.OutOfRangeError, ENDED),
    (dequeue(LAST, lambda outfeed: outfeed.dequeue()), tf.errors.FailedPreconditionError, NO_VALUE),
    (dequeue(ALL, lambda outfeed: outfeed.deleter), tf.errors.NotFoundError, DELETED),
    (in_session(), tf.errors.OutOfRangeError, ENDED),
    (in_session(check=small), tf.errors.InvalidArgumentError, DATA),
    (in_session(started=False), tf.errors.FailedPreconditionError, NOT_STARTED),
    (dequeue_in_session, tf.errors.FailedPreconditionError, NO_VALUE),
    (of_model("fit", shuffle=False), tf.errors.InvalidArgumentError, DATA),
    (of_model("evaluate"), tf.errors.InvalidArgumentError, DATA),
    (of_model("predict"), tf.errors.InvalidArgumentError, DATA),
    (numbers_that_stop, tf.errors.InvalidArgumentError, "Floating point exception: Log `Log`"),
]


@pytest.mark.parametrize("ipus", [1, 2])
@pytest.mark.parametrize(("way", "kind", "message"), WAYS)
def test_what_fails_says_its_own_words_first(way, kind, message, ipus, replicas):
    with pytest.raises(tf.errors.OpError) as caught:
        way(replicas(ipus))
    assert type(caught.value) is kind
    assert re.match(message, str(caught.value), re.DOTALL), str(caught.value)
    assert re.search(AROUND, caught.value.message) is None, caught.value.message


def message_of(call: Callable[[], Any]) -> str:
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        call()
    return re.sub(r"_\d+", "", caught.value.message)


def test_failures_of_plain_operations_are_told_as_ever(replicas):
    def without_package() -> Any:
        @tf.function
        def function(x: Any) -> Any:
            tf.debugging.assert_less(x, 1.0)
            return x

        return function(tf.constant(3.0))

    def session(programs: bool) -> None:
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [None])
            results = [tf.linalg.matmul(tf.expand_dims(x, 0), tf.zeros([2, 2]))]
            if programs:
                with scopes.ipu_scope(IPU):
                    results += compiler.compile(lambda y: y + 1.0, [x])
            with v1.Session() as running:
                running.run(results, {x: [3.0]})

    def without_and_with_a_program() -> Iterator[object]:
        yield None
        strategy, program = replicas(1), tf.function(lambda x: x + 1.0, jit_compile=True)
        around = tf.function(lambda x: strategy.run(program, (x,)))
        around(tf.constant(1.0))
        assert patches.SESSION_ERRORS.is_applied
        assert patches.FUNCTION_ERRORS.is_applied
        yield around

    # The messages contain this line.
    without, with_it = [
        (message_of(without_package), message_of(lambda: session(programs=False))) for _ in without_and_with_a_program()
    ]
    assert with_it == without
    for message in (*without, message_of(lambda: session(programs=True))):
        assert message.startswith("Graph execution error:\n\nDetected at node")


def test_an_error_is_ours_where_the_first_of_those_that_are_told_is():
    from_package = "(0) ABORTED: Words.\n\t [[{{node a/IpuReplicatedRun_1}}]]"
    from_tensorflow = "(0) ABORTED: Words.\n\t [[{{node MatMul}}]]"
    # An operation that waited for a result has the result's name and a number.
    waiting = "\n\t [[a/IpuReplicatedRun_1/_3]]"
    roots = "2 root error(s) found.\n  {}{}\n  (1) {}\n0 successful operations.\n0 derived errors ignored."
    assert op_errors.is_ours(roots.format(from_package, waiting, from_tensorflow[4:]))
    assert not op_errors.is_ours(roots.format(from_tensorflow, waiting, from_package[4:]))
    assert op_errors.is_ours("Words.\n\t [[{{node Assert}}]]\n\t [[IpuReplicatedRun]] [Op:__inference_f_1]")
    assert not op_errors.is_ours("Words.\n\t [[{{node Assert}}]]\n\t [[IpuReplicatedRun/_3]] [Op:__inference_f_1]")


def test_words_of_tensorflow_around_a_message_are_cut():
    around = (
        'Graph execution error:\n\nDetected at node IpuReplicatedRun defined at (most recent call last):\n  File "a.py", line 1'
        "\n\n{{function_node __wrapped__IpuReplicatedRun_Tin_4}} It is\nwrong.\n\t [[{{node a/IpuReplicatedRun}}]]"
        " [Op:__inference_<lambda>_80]"
    )
    two = "2 root error(s) found.\n  (0) INVALID_ARGUMENT: It is\nwrong.\n\t [[{{node IpuReplicatedRun}}]]"
    two += "\n\t [[Identity/_1]]\n  (1) INVALID_ARGUMENT: It is\nwrong.\n0 successful operations.\n0 derived errors ignored."
    for message, expected in (
        (around, "It is\nwrong."),
        (two, "It is\nwrong."),
        ("It is [3] wrong. [Op:IpuOutfeedDequeue] name: ", "It is [3] wrong."),
        ("It is wrong.", "It is wrong."),
    ):
        assert op_errors.plain_message(message) == expected
