"""`/device:IPU:n` are devices of TensorFlow; the configuration determines which of them exist."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu.config import get_num_of_ipus_in_device, reset_ipu_configuration


def on(ordinal):
    return tf.device(f"/device:IPU:{ordinal}")


def exists(ordinal):
    """Returns True if operations on the device run."""
    try:
        with on(ordinal):
            (tf.identity(1.0) + 1.0).numpy()
    except tf.errors.FailedPreconditionError:
        return False
    return True


def test_registered_devices_are_listed():
    numbers = range(environment.registered_devices())
    physical, logical = tf.config.list_physical_devices("IPU"), tf.config.list_logical_devices("IPU")
    assert [device.name for device in physical] == [f"/physical_device:IPU:{i}" for i in numbers]
    assert [device.name for device in logical] == [f"/device:IPU:{i}" for i in numbers]
    assert {device.device_type for device in physical} == {"IPU"}
    assert tf.config.list_logical_devices("CPU")


def test_devices_are_those_of_the_configuration_or_one(configure):
    assert [exists(i) for i in range(3)] == [True, False, False]
    configure(2, 4)
    assert [exists(i) for i in range(3)] == [True, True, False]
    assert [get_num_of_ipus_in_device(f"/device:IPU:{i}") for i in range(2)] == [2, 4]
    configure(1)
    assert [exists(i) for i in range(3)] == [True, False, False]
    configure(1, 1, 1)
    assert [exists(i) for i in range(3)] == [True, True, True]
    reset_ipu_configuration()
    assert [exists(i) for i in range(3)] == [True, False, False]


WORDS = r"`/device:IPU:2` is not configured: the system has 1 IPU device\(s\).*`IPUConfig.auto_select_ipus`.*3 or more"


def test_work_on_a_device_that_is_not_configured_is_refused_in_words(configure, refused):
    for work in (
        lambda: tf.identity(1.0) + 1.0,
        lambda: tf.random.normal([2]),
        tf.function(lambda: tf.reduce_sum(tf.random.normal([2]))),
        tf.function(lambda: tf.reduce_sum(tf.ones([2])), jit_compile=True),
        lambda: tf.keras.layers.Dense(1)(np.ones([1, 1], np.float32)),
    ):
        with on(2), pytest.raises(tf.errors.FailedPreconditionError, match=WORDS):
            work()

    @tf.function
    def function(x):
        with on(2):
            return x + 1

    refused(tf.errors.FailedPreconditionError, WORDS, function, tf.constant(1.0))
    configure(1, 1, 1)
    assert function(tf.constant(1.0)).numpy() == 2


def test_variable_may_be_made_before_its_device_is_configured_and_outlives_it(configure, refused):
    with on(1):
        variables = [tf.Variable(1.0), tf.Variable(tf.ones([2000])), tf.Variable(lambda: tf.zeros([2000]))]
        dropped = tf.Variable(5.0)
    for begin in (0, 1):  # Before and after the configuration, the device does not exist.
        for variable in variables:
            assert variable.device.endswith("/device:IPU:1")
            refused(tf.errors.FailedPreconditionError, "`/device:IPU:1` is not configured", variable.read_value)
        configure(1, 1)
        for variable, initial in zip(variables, (1.0, 1.0, 0.0), strict=True):
            expected = np.full(variable.shape, initial + begin + 1, np.float32)
            np.testing.assert_array_equal(variable.assign_add(tf.ones_like(expected)), expected)
        reset_ipu_configuration()
    del dropped
    assert exists(0)


def test_device_runs_every_kind_of_op():
    for work in (
        lambda: tf.reduce_sum(tf.range(10)),
        lambda: tf.strings.length("abc") + 42,
        lambda: tf.cast(tf.linalg.det(3.0 * tf.eye(2)), tf.int32) + 36,  # pyright: ignore[reportOperatorIssue]
        lambda: tf.numpy_function(lambda: np.int32(45), [], tf.int32),
        lambda: tf.cond(tf.constant(True), lambda: tf.constant(45), lambda: tf.constant(0)),
        lambda: tf.data.Dataset.range(10).reduce(np.int64(0), lambda x, y: x + y),
    ):
        for call in (work, tf.function(work)):
            with on(0):
                assert int(call()) == 45
    host = tf.constant([1.0, 2.0])
    with on(0):
        result, copy = host * 2, tf.identity(host)
    assert result.device == copy.device == "/job:localhost/replica:0/task:0/device:IPU:0"
    np.testing.assert_array_equal(result + host, [3, 6])
    np.testing.assert_array_equal(result.numpy(), [2, 4])


def test_variable_of_the_device_is_refused_by_a_compiled_function_elsewhere(refused):
    with on(0):
        variable = tf.Variable(1.0)
    function = tf.function(lambda: variable + 1, jit_compile=True)
    refused(tf.errors.InvalidArgumentError, "located in device .*IPU:0 from device .*CPU:0", function)
    with on(0):
        assert function().numpy() == 2


def test_number_of_devices_and_of_ipus_comes_from_the_environment(run_script):
    code = """
        import tensorflow as tf

        import tensorflow_ipu as ipu

        print(len(tf.config.list_physical_devices("IPU")), len(tf.config.list_logical_devices("IPU")))
        config = ipu.IPUConfig()
        for ipus in ([1] * 10, [1] * 11, [70]):
            config.auto_select_ipus = ipus
            try:
                config.configure_ipu_system()
            except RuntimeError as exc:
                print(type(exc).__name__, exc)
        strategy = ipu.IPUStrategy("/device:IPU:9")
        with strategy.scope():
            variable = tf.Variable(1.0)
        print(strategy.run(tf.function(lambda: variable + 1)).device.rpartition("/")[2])
    """
    done = run_script(code, env={"TENSORFLOW_IPU_DEVICES": "10", "TENSORFLOW_IPU_COUNT": "20"})
    listed, devices, ipus, place = done.stdout.splitlines()
    assert (listed, place) == ("10 10", "device:IPU:9")
    assert re.match("DeviceLimitError.*`TENSORFLOW_IPU_DEVICES=11`", devices)
    assert re.match("DeviceLimitError.*`TENSORFLOW_IPU_COUNT=70`", ipus)
