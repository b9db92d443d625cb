"""An error of a program begins with our words, whatever runs it, and its class fits the fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._tensorflow import op_errors, patches

_AROUND = re.compile(r"\{\{|\[Op:|Graph execution error|Detected at node|root error")


def _asserts(x: Any) -> Any:
    tf.debugging.assert_less(x, 2.0, "it is too large")
    return x + 1.0


def _program() -> Any:
    return tf.function(_asserts, jit_compile=True)


def _runs(strategy: Any) -> Any:
    return strategy.run(_program(), [tf.constant(3.0)])


def _prepared(strategy: Any) -> Any:
    return strategy.prepare(_program(), [tf.constant(3.0)]).run()


def _in_a_function(strategy: Any) -> Any:
    program = _program()

    @tf.function
    def around(x: Any) -> Any:
        return strategy.run(program, [x]) + 1.0

    return around(tf.constant(3.0))


def _in_a_nested_function(strategy: Any) -> Any:
    inner = tf.function(lambda x: strategy.run(_program(), [x]))
    return tf.function(lambda x: inner(x) * 2.0)(tf.constant(3.0))


def _in_a_session(strategy: Any) -> Any:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [])
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            result = ipu.compiler.compile(_asserts, [x])
        return session.run(result, {x: 3.0})


def _fits(strategy: Any) -> Any:
    return _model(strategy).fit(np.ones((4, 3), np.float32), np.full((4, 1), 3, np.float32), batch_size=1, verbose=0)


def _evaluates(strategy: Any) -> Any:
    return _model(strategy).evaluate(
        np.ones((4, 3), np.float32), np.full((4, 1), 3, np.float32), batch_size=1, verbose=0
    )


def _model(strategy: Any) -> Any:
    def loss(y: Any, predicted: Any) -> Any:
        _asserts(tf.reduce_max(y))
        return tf.reduce_mean((y - predicted) ** 2)

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", loss, steps_per_execution=2)
    return model


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "way", [_runs, _prepared, _in_a_function, _in_a_nested_function, _in_a_session, _fits, _evaluates]
)
def test_failed_assertion_is_told_in_its_own_words(way: Callable[[Any], Any], count: int, replicas: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError) as failure:
        way(replicas(count))
    message = str(failure.value)
    assert message.startswith("Assert `")
    assert "[it is too large]" in message
    assert not _AROUND.search(message), message


def _repeats(body: Callable[[Any], None], dataset: tf.data.Dataset) -> Any:
    queue = ipu.IPUInfeedQueue(dataset)
    queue.initializer  # noqa: B018  (The property starts it.)

    @tf.function(jit_compile=True)
    def program() -> None:
        ipu.loops.repeat(5, body, infeed_queue=queue)

    return program


def _bad(number: tf.Tensor) -> tf.Tensor:
    return tf.debugging.check_numerics(1.0 / tf.cast(number - number, tf.float32), "the data are bad")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("dataset", "error", "words"),
    [
        (
            lambda: tf.data.Dataset.range(2, output_type=tf.int32),
            tf.errors.OutOfRangeError,
            "The dataset of the infeed queue `",
        ),
        (lambda: tf.data.Dataset.range(4).map(_bad), tf.errors.InvalidArgumentError, "Error in user-defined function"),
    ],
)
def test_data_that_end_or_fail_are_told_in_our_words(
    dataset: Any, error: type[Exception], words: str, count: int, replicas: Any
) -> None:
    strategy, program = replicas(count), _repeats(lambda _: None, dataset())
    with pytest.raises(error) as failure:
        strategy.run(program)
    message = str(failure.value)
    assert message.startswith(words), message
    assert not _AROUND.search(message), message


@pytest.mark.parametrize("in_function", [False, True])
def test_too_few_ipus_are_a_precondition(in_function: bool, replicas: Any) -> None:
    @tf.function(jit_compile=True)
    def program() -> tf.Tensor:
        with ipu.scopes.ipu_shard(1):
            return tf.constant(1.0) + tf.constant(2.0)

    strategy = replicas(1)
    call = tf.function(lambda: strategy.run(program)) if in_function else lambda: strategy.run(program)
    with pytest.raises(tf.errors.FailedPreconditionError) as failure:
        call()
    message = str(failure.value)
    assert message.startswith("The program uses 2 IPUs")
    assert message.endswith("Set `IPUConfig.auto_select_ipus` to a multiple of 2.")


def test_errors_of_plain_operations_are_left_to_tensorflow(replicas: Any) -> None:
    strategy, program = replicas(1), _program()

    def gather(x: tf.Tensor) -> tf.Tensor:
        return tf.gather(x, 7)

    @tf.function
    def around(x: tf.Tensor) -> tf.Tensor:
        return strategy.run(program, [1.0]) + gather(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="Graph execution error") as failure:
        around(tf.zeros(3))
    assert "Detected at node" in str(failure.value)


def test_words_of_tensorflow_around_a_message_are_cut() -> None:
    around = (
        'Graph execution error:\n\nDetected at node IpuReplicatedRun defined at (most recent call last):\n  File "a.py", line 1'
        "\n\n{{function_node __wrapped__IpuReplicatedRun_Tin_4}} It is\nwrong.\n\t [[{{node a/IpuReplicatedRun}}]]"
        " [Op:__inference_<lambda>_80]"
    )
    assert op_errors.plain_message(around) == "It is\nwrong."
    assert op_errors.plain_message("It is [3] wrong. [Op:IpuOutfeedDequeue] name: ") == "It is [3] wrong."
    assert op_errors.plain_message("It is wrong.") == "It is wrong."
    two = "2 root error(s) found.\n  (0) INVALID_ARGUMENT: It is\nwrong.\n\t [[{{node IpuReplicatedRun}}]]"
    two += "\n\t [[Identity/_1]]\n  (1) INVALID_ARGUMENT: It is\nwrong.\n0 successful operations.\n0 derived errors ignored."
    assert op_errors.plain_message(two) == "It is\nwrong."


def test_they_are_told_so_as_long_as_a_graph_with_a_program_lives() -> None:
    graph = tf.Graph()
    op_errors.tell_plainly_in(graph)
    assert patches.FUNCTION_ERRORS.is_applied
    assert patches.SESSION_ERRORS.is_applied
