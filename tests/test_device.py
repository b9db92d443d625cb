"""`/device:IPU:n`: devices of TensorFlow, of which the configuration says which exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import environment
from tensorflow_ipu.config import get_num_of_ipus_in_device, reset_ipu_configuration


@pytest.fixture(autouse=True)
def fresh_system() -> Iterator[None]:
    reset_ipu_configuration()
    yield
    reset_ipu_configuration()


def configure(*ipus: int) -> None:
    config = ipu.IPUConfig()
    config.auto_select_ipus = ipus
    config.configure_ipu_system()


def on(ordinal: int) -> Any:
    return tf.device(f"/device:IPU:{ordinal}")


def exists(ordinal: int) -> bool:
    """Whether work on the device runs."""
    try:
        with on(ordinal):
            (tf.identity(1.0) + 1.0).numpy()
    except tf.errors.FailedPreconditionError:
        return False
    return True


def test_registered_devices_are_listed() -> None:
    count = environment.registered_devices()
    assert [device.name for device in tf.config.list_physical_devices("IPU")] == [
        f"/physical_device:IPU:{i}" for i in range(count)
    ]
    assert [device.name for device in tf.config.list_logical_devices("IPU")] == [
        f"/device:IPU:{i}" for i in range(count)
    ]
    assert {device.device_type for device in tf.config.list_physical_devices("IPU")} == {"IPU"}
    assert tf.config.list_logical_devices("CPU")


def test_there_is_one_device_where_nothing_was_configured() -> None:
    assert [exists(i) for i in range(3)] == [True, False, False]


def test_devices_are_those_of_the_configuration() -> None:
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

WORK = {
    "op": lambda: tf.identity(1.0) + 1.0,
    "random": lambda: tf.random.normal([2]),
    "function": lambda: tf.function(lambda: tf.reduce_sum(tf.random.normal([2])))(),
    "compiled function": lambda: tf.function(lambda: tf.reduce_sum(tf.ones([2])), jit_compile=True)(),
    "model": lambda: tf.keras.layers.Dense(1)(np.ones([1, 1], np.float32)),
}


@pytest.mark.parametrize("name", WORK)
def test_work_on_a_device_that_is_not_configured_is_refused_in_words(name: str) -> None:
    with on(2), pytest.raises(tf.errors.FailedPreconditionError, match=WORDS):
        WORK[name]()


def test_function_that_places_work_on_a_device_that_is_not_configured_is_refused_in_words() -> None:
    @tf.function
    def function(x: Any) -> Any:
        with on(2):
            return x + 1

    with pytest.raises(tf.errors.FailedPreconditionError, match=WORDS):
        function(tf.constant(1.0))
    configure(1, 1, 1)
    assert function(tf.constant(1.0)).numpy() == 2


@pytest.mark.parametrize("initial", [1.0, tf.ones([2000]), lambda: tf.zeros([2000])], ids=["number", "ones", "zeros"])
def test_variable_may_be_made_before_its_device_is_configured(initial: Any) -> None:
    with on(1):
        variable = tf.Variable(initial)
    assert variable.device.endswith("/device:IPU:1")
    with pytest.raises(tf.errors.FailedPreconditionError, match="`/device:IPU:1` is not configured"):
        variable.read_value()
    configure(1, 1)
    value: Any = initial() if callable(initial) else initial
    expected = value + 1.0
    np.testing.assert_array_equal(variable.assign_add(tf.ones_like(expected)), expected)


def test_variable_outlives_its_device_and_is_there_when_it_comes_back() -> None:
    configure(1, 1)
    with on(1):
        variable = tf.Variable(5.0)
    reset_ipu_configuration()
    with pytest.raises(tf.errors.FailedPreconditionError, match="`/device:IPU:1` is not configured"):
        variable.read_value()
    configure(1, 1)
    assert variable.assign_add(1.0).numpy() == 6


def test_variable_of_a_device_that_is_gone_can_be_dropped() -> None:
    configure(1, 1)
    with on(1):
        variable = tf.Variable(5.0)
    reset_ipu_configuration()
    del variable
    assert exists(0)


@pytest.mark.parametrize(
    "work",
    [
        lambda: tf.reduce_sum(tf.range(10)),
        lambda: tf.strings.length("abc") + 42,
        lambda: tf.cast(tf.linalg.det(3.0 * tf.eye(2)), tf.int32) + 36,
        lambda: tf.numpy_function(lambda: np.int32(45), [], tf.int32),
        lambda: tf.cond(tf.constant(True), lambda: tf.constant(45), lambda: tf.constant(0)),
        lambda: tf.data.Dataset.range(10).reduce(np.int64(0), lambda x, y: x + y),
    ],
    ids=["sum", "strings", "linear algebra", "python", "branch", "dataset"],
)
def test_device_runs_every_kind_of_op(work: Any) -> None:
    for call in (work, tf.function(work)):
        with on(0):
            assert int(call()) == 45


def test_results_are_on_the_device_and_go_to_and_fro() -> None:
    host = tf.constant([1.0, 2.0])
    with on(0):
        result = host * 2
        copy = tf.identity(host)
    assert result.device == copy.device == "/job:localhost/replica:0/task:0/device:IPU:0"
    np.testing.assert_array_equal(result + host, [3, 6])
    np.testing.assert_array_equal(result.numpy(), [2, 4])


def test_variable_of_the_device_is_refused_by_a_compiled_function_elsewhere() -> None:
    with on(0):
        variable = tf.Variable(1.0)
    function = tf.function(lambda: variable + 1, jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="located in device .*IPU:0 from device .*CPU:0"):
        function()
    with on(0):
        assert function().numpy() == 2


def test_number_of_devices_and_of_ipus_comes_from_the_environment(run_script: Any) -> None:
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
    assert listed == "10 10"
    assert devices.startswith("DeviceLimitError")
    assert "`TENSORFLOW_IPU_DEVICES=11`" in devices
    assert ipus.startswith("DeviceLimitError")
    assert "`TENSORFLOW_IPU_COUNT=70`" in ipus
    assert place == "device:IPU:9"
