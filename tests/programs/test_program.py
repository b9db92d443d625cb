"""`Program`: found after its trace, checked once, run any number of times, with explained errors."""

import pytest
import tensorflow as tf

from tensorflow_ipu.programs import Program, Target


@pytest.fixture
def call(strategy):
    def double(x):
        return 2 * x

    with tf.device(strategy.extended.ipu_device):
        yield tf.function(double), (tf.constant(3.0),), {}, strategy.extended.ipu_device, strategy.extended.target


def test_a_program_is_found_once_it_is_traced_and_checked_once(call):
    assert Program.find(*call) is None
    program = Program.trace(*call)
    for same in (Program.find(*call), Program.trace(*call)):
        assert same is not None
        assert same.function is program.function
        assert [float(value) for value in same.inputs] == [3.0]
    assert Program.find(*call[:-1], Target(64, True)) is None
    assert (program.name, program.ordinal, program.ipus_of_replica) == ("double", 0, 1)
    assert [program.check() for _ in range(2)] == [False, True]
    assert [float(program.run()) for _ in range(2)] == [6.0, 6.0]


def test_the_error_of_a_run_has_its_message_alone_and_a_queue_that_comes_twice_is_named(call):
    program = Program.trace(*call)
    error = program.explain(tf.errors.InternalError(None, None, "{{function_node x}} it failed [Op:IpuRun]"))
    assert (str(error), error.__suppress_context__) == ("it failed", True)
    with tf.init_scope():
        twice = tf.Variable(1.0).handle
    cause = tf.errors.UnimplementedError(None, None, "as XLA says it")
    error = Program(program.function, [twice, twice], program.device, program.target).explain(cause)
    assert isinstance(error, ValueError)
    assert "gets the same queue twice" in str(error)
    assert error.__cause__ is cause
