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
    reset_ipu_configuration()
    config.configure_ipu_system()


@tf.function(jit_compile=True)
def program(variable: Any, x: Any) -> Any:
    variable.assign_add(x)
    return {"sum": variable + x, "vector": tf.stack([x, x]), "flag": x > 0, "none": None}


@pytest.mark.parametrize("wrap", [lambda run: run, tf.function], ids=["eager", "graph"])
def test_connection_says_whether_a_program_runs(wrap: Any, strategy: Any) -> None:
    with strategy.scope():
        variable = tf.Variable(1.0)
    # A graph is traced before anything is configured: it heeds the connection that there is when it runs.
    run = wrap(lambda: strategy.run(program, (variable, tf.constant(2.0))))
    assert run()["sum"].numpy() == 5
    configure(DeviceConnectionType.PRE_COMPILE)
    for _ in range(2):
        result = run()
        assert (result["sum"].dtype, result["sum"].numpy()) == (tf.float32, 0)
        np.testing.assert_array_equal(result["vector"], [0, 0])
        assert (result["flag"].dtype, bool(result["flag"])) == (tf.bool, False)
        assert result["none"] is None
    configure(DeviceConnectionType.NEVER)
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"`device_connection.type` is `NEVER`.*DeviceConnectionType.ALWAYS"
    ):
        run()
    assert variable.numpy() == 3
    for kind, total in ((DeviceConnectionType.ALWAYS, 7), (DeviceConnectionType.ON_DEMAND, 9)):
        configure(kind)
        assert run()["sum"].numpy() == total


def test_a_device_that_compiles_only_asks_for_shapes_that_are_known(strategy: Any) -> None:
    spec = [tf.TensorSpec([None], tf.float32)]
    held = tf.function(lambda x: strategy.run(tf.function(lambda x: x + 1), (x,)), input_signature=spec)
    configure(DeviceConnectionType.PRE_COMPILE)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"Result 0 .* no shape .* `tf.ensure_shape`"):
        held(tf.ones([2]))


def test_a_function_that_a_program_calls_is_traced_for_each_number_of_ipus(strategy: Any) -> None:
    traces = []

    @tf.function
    def inner(x: Any) -> Any:
        traces.append(1)
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", x) if context is not None else x

    assert inner(tf.constant(2.0)).numpy() == 2  # What is traced for the host is not the program's.
    outer = tf.function(lambda x: inner(x), jit_compile=True)
    found = [strategy.run(outer, (tf.constant(2.0),)).numpy()]
    for ipus in (2, 4, 2, 1):
        configure(DeviceConnectionType.ALWAYS, [ipus])
        found.append(strategy.run(outer, (tf.constant(2.0),)).numpy())
    assert found == [2, 4, 8, 4, 2]
    assert len(traces) == 4, "once for the host, and once for each number"


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
