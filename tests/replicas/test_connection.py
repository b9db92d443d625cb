"""What a device does with programs by its configured connection, and where it is not configured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.config import DeviceConnectionType, reset_ipu_configuration
from tensorflow_ipu.errors import NotConfiguredError


def configure(kind: DeviceConnectionType, ipus: list[int] | None = None) -> None:
    config = ipu.IPUConfig()
    config.auto_select_ipus = ipus or [1]
    config.device_connection.type = kind
    config.device_connection.version = "ipu2"
    config.configure_ipu_system()


@tf.function(jit_compile=True)
def program(variable: Any, x: Any) -> Any:
    variable.assign_add(x)
    return {"sum": variable + x, "vector": tf.stack([x, x]), "flag": x > 0, "none": None}


@pytest.mark.parametrize("kind", [DeviceConnectionType.ALWAYS, DeviceConnectionType.ON_DEMAND])
def test_connected_device_runs_programs(kind: DeviceConnectionType, strategy: Any) -> None:
    configure(kind)
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert strategy.run(program, (variable, tf.constant(2.0)))["sum"].numpy() == 5
    assert variable.numpy() == 3


def test_never_connected_device_refuses_to_run(strategy: Any) -> None:
    configure(DeviceConnectionType.NEVER)
    with strategy.scope():
        variable = tf.Variable(1.0)
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"`device_connection.type` is `NEVER`.*DeviceConnectionType.ALWAYS"
    ):
        strategy.run(program, (variable, tf.constant(2.0)))
    assert variable.numpy() == 1


def test_pre_compiling_device_returns_zeros_and_runs_nothing(strategy: Any) -> None:
    configure(DeviceConnectionType.PRE_COMPILE)
    with strategy.scope():
        variable = tf.Variable(1.0)
    for _ in range(2):
        result = strategy.run(program, (variable, tf.constant(2.0)))
        assert (result["sum"].dtype, result["sum"].numpy()) == (tf.float32, 0)
        np.testing.assert_array_equal(result["vector"], [0, 0])
        assert (result["flag"].dtype, bool(result["flag"])) == (tf.bool, False)
        assert result["none"] is None
    assert variable.numpy() == 1


def test_a_graph_that_holds_a_program_heeds_the_connection(strategy: Any) -> None:
    with strategy.scope():
        variable = tf.Variable(1.0)

    def held() -> Any:
        return tf.function(lambda: strategy.run(program, (variable, tf.constant(2.0)))["sum"])

    configure(DeviceConnectionType.PRE_COMPILE)
    assert held()().numpy() == 0
    configure(DeviceConnectionType.NEVER)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"`device_connection.type` is `NEVER`"):
        held()()
    assert variable.numpy() == 1


def test_a_graph_that_holds_a_program_of_another_number_of_ipus_is_refused(strategy: Any) -> None:
    with strategy.scope():
        variable = tf.Variable(1.0)
    held = tf.function(lambda: strategy.run(program, (variable, tf.constant(2.0)))["sum"])
    assert held().numpy() == 5
    configure(DeviceConnectionType.ALWAYS, [2])
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"had 1 IPU\(s\), and it has 2 now"):
        held()


def test_a_function_that_reduced_for_another_number_of_ipus_is_refused(strategy: Any) -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", x)

    outer = tf.function(lambda x: inner(x), jit_compile=True)
    assert strategy.run(outer, (tf.constant(2.0),)).numpy() == 2
    configure(DeviceConnectionType.ALWAYS, [2])
    with pytest.raises(ValueError, match=r"traced while .* had 1 IPU\(s\), and it has 2 now"):
        strategy.run(outer, (tf.constant(2.0),))
    anew = tf.function(lambda x: tf.distribute.get_replica_context().all_reduce("SUM", x), jit_compile=True)
    assert strategy.run(anew, (tf.constant(2.0),)).numpy() == 4


def test_device_that_is_connected_again_runs_the_same_program(strategy: Any) -> None:
    configure(DeviceConnectionType.PRE_COMPILE)
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert strategy.run(program, (variable, tf.constant(2.0)))["sum"].numpy() == 0
    configure(DeviceConnectionType.ALWAYS)
    assert strategy.run(program, (variable, tf.constant(2.0)))["sum"].numpy() == 5


def test_run_on_a_device_that_is_not_configured_is_refused() -> None:
    strategy = ipu.IPUStrategy("/device:IPU:1")
    calls = tf.function(lambda x: x + 1)
    with pytest.raises(NotConfiguredError, match=r"`/device:IPU:1` does not exist in the present configuration"):
        strategy.run(calls, (1,))
    configure(DeviceConnectionType.ALWAYS, [1, 1])
    assert strategy.run(calls, (1,)).numpy() == 2
    reset_ipu_configuration()
    with pytest.raises(NotConfiguredError, match=r"`/device:IPU:1` does not exist"):
        strategy.run(calls, (1,))
