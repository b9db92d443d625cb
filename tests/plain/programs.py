"""A script that records all of plain TensorFlow that the package might change: `programs.py plain|beside FILE`.

`plain` does not use the package. `beside` imports it first, configures a system, and runs programs, two of which fail.
Both write JSON to the file: the HLO of plain compiled functions, the results of other plain code, and settings of the
process. `beside` also records the functions of TensorFlow and Keras that the import replaced.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import pathlib
import re
import signal
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import operations

SEEN_BEFORE = {name: logging.getLogger(name) for name in list(logging.root.manager.loggerDict)}


def run_programs() -> None:
    """Uses the package as users do, with programs that succeed and programs that fail."""
    import tensorflow_ipu as ipu

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        _train(strategy, ipu)
        model = keras.Sequential([keras.layers.Conv2D(2, 3), keras.layers.BatchNormalization(), keras.layers.Flatten()])
        model.add(keras.layers.Dropout(0.5))
        model.add(keras.layers.Dense(2))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=2)
        model.fit(np.ones((8, 6, 6, 1), np.float32), np.zeros(8, np.int32), batch_size=2, verbose=0)
        pipelined = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2)])
        pipelined.build((None, 3))
        pipelined.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        pipelined.set_pipeline_stage_assignment([0, 1])
        pipelined.compile("sgd", "mse", steps_per_execution=4)
        pipelined.fit(np.ones((16, 3), np.float32), np.ones((16, 2), np.float32), batch_size=2, verbose=0)

    @tf.function(jit_compile=True)
    def failing(x: Any) -> Any:
        tf.print("It is", x)
        tf.debugging.assert_less(x, 2.0, "it is too large")
        return tf.nn.local_response_normalization(tf.ones([1, 2, 2, 4]) * x)

    strategy.run(failing, [1.0])
    try:
        strategy.run(failing, [3.0])
    except tf.errors.InvalidArgumentError:
        pass
    else:
        raise AssertionError("a program that fails did not fail")

    @tf.function(jit_compile=True)
    def untraceable() -> None:
        raise KeyError("while it is traced")

    with contextlib.suppress(KeyError):
        strategy.run(untraceable)
    ipu.config.reset_ipu_configuration()
    keras.backend.clear_session()


def _train(strategy: Any, ipu: Any) -> None:
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([2, 3])).repeat())
    outfeed = ipu.IPUOutfeedQueue()
    weights = tf.Variable(tf.ones([3, 2]))

    def body(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.softmax(x @ weights) ** 2)
        gradient: Any = tape.gradient(loss, weights)
        weights.assign_sub(0.1 * gradient)
        outfeed.enqueue(loss + tf.random.uniform([]))

    @tf.function(jit_compile=True)
    def program() -> None:
        ipu.loops.repeat(4, body, infeed_queue=infeed)

    infeed.initializer  # noqa: B018
    strategy.run(program)
    outfeed.dequeue()


# Replaced functions.


def functions() -> dict[str, Any]:
    """Returns all functions and classes of TensorFlow and Keras, the members of classes, and lists of functions.

    Lists are copied. Gradients have the name of their operation.
    """
    from tensorflow.python.framework import ops

    result = {name: entry["type"] for name, entry in ops.gradient_registry._registry.items()}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in ("tensorflow", "keras") or not isinstance(module, types.ModuleType):
            continue
        for name, value in _members(module):
            result[f"{module_name}:{name}"] = value
            if isinstance(value, type) and value.__module__ == module_name:
                result |= {f"{module_name}:{name}.{inner}": member for inner, member in _members(value)}
    return result


def _members(holder: Any) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(holder).items()):
        if isinstance(value, (list, tuple)):  # Lists of functions that TensorFlow calls.
            yield name, [function for function in value if isinstance(function, types.FunctionType)]
        elif isinstance(value, (types.FunctionType, type, staticmethod, classmethod, property)):
            yield name, value


def replaced(original: dict[str, Any]) -> list[str]:
    """Returns the names whose values have changed since, including lists that have become longer."""
    current = functions()
    return sorted(name for name, value in original.items() if name in current and not _is_same(value, current[name]))


def _is_same(original: Any, current: Any) -> bool:
    if isinstance(original, list):
        return len(original) == len(current) and all(
            first is second for first, second in zip(original, current, strict=True)
        )
    return original is current


# Plain functions that XLA compiles.


def hlo_of(function: Callable[..., Any], arguments: list[Any]) -> str:
    """Returns the HLO of a function without the numbers of traced functions, or the error if XLA cannot compile it."""
    try:
        compiled = tf.function(function, jit_compile=True, autograph=False)
        text = compiled.experimental_get_compiler_ir(*arguments)(stage="hlo")
    except Exception as exc:
        text = f"{type(exc).__name__}: {exc}"
    return re.sub(r"_\d+(?=[_\W])", "_N", str(text))


def models() -> Iterator[tuple[str, keras.Model, tuple[int, ...], str]]:
    """Yields ten Keras models with the shapes and the types of their batches."""
    layers = keras.layers

    def sequential(name: str, shape: tuple[int, ...], *of: Any, dtype: str = "float32") -> Any:
        model = keras.Sequential([keras.Input(shape[1:], shape[0]), *of, layers.Flatten(), layers.Dense(3)])
        return name, model, shape, dtype

    image, sentence = (2, 6, 6, 2), (2, 5, 4)
    yield sequential("mlp", (2, 4), layers.Dense(8, "relu"), layers.Dropout(0.5), layers.Dense(8, "tanh"))
    convolutions = layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.MaxPooling2D()
    yield sequential("convolutions", image, *convolutions)
    separable = layers.SeparableConv2D(4, 3), layers.DepthwiseConv2D(3), layers.AveragePooling2D(2)
    yield sequential("separable", image, *separable)
    enlarging = layers.Conv2DTranspose(2, 3), layers.UpSampling2D(interpolation="bilinear")
    yield sequential("enlarging", image, *enlarging, layers.GroupNormalization(2))
    yield sequential("lstm", (2, 5), layers.Embedding(9, 4), layers.LSTM(4), dtype="int32")
    yield sequential("gru", sentence, layers.GRU(4, return_sequences=True))
    yield sequential("volumes", (2, 4, 4, 4, 1), layers.Conv3D(2, 2, activation="elu"), layers.MaxPooling3D())
    entered = keras.Input(sentence[1:], sentence[0])
    attended = layers.MultiHeadAttention(2, 2)(entered, entered)
    attended = layers.LayerNormalization()(layers.Activation("gelu")(entered + attended))
    flat = layers.Dense(3)(layers.GlobalAveragePooling1D()(attended))
    yield "transformer", keras.Model(entered, flat), sentence, "float32"
    yield sequential("half precision", (2, 4), layers.Dense(8, "selu", dtype="mixed_float16"))
    noisy = layers.GaussianNoise(0.1), layers.Conv1D(4, 2, activation="softplus"), layers.SpatialDropout1D(0.5)
    yield sequential("noise", sentence, *noisy)


class Confusion(keras.metrics.Metric):
    """A metric that contains an `Assert` with texts."""

    def __init__(self) -> None:
        super().__init__(name="confusion")
        self.matrix = self.add_weight(shape=(3, 3), initializer="zeros", name="matrix")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        true = tf.cast(tf.reshape(y_true, [-1]), tf.int64)
        self.matrix.assign_add(tf.math.confusion_matrix(true, tf.argmax(y_pred, -1), 3, dtype=tf.float32))

    def result(self) -> Any:
        return tf.linalg.trace(tf.convert_to_tensor(self.matrix))


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[Confusion()], **options)
    return model


def batch(shape: tuple[int, ...], dtype: str) -> tuple[tf.Tensor, tf.Tensor]:
    size = int(np.prod(shape))
    values = np.arange(size) % 7 if dtype == "int32" else np.linspace(-1, 1, size)
    return tf.constant(values.reshape(shape), dtype), tf.constant([0, 2], tf.int64)


def programs() -> dict[str, str]:
    texts = {name: hlo_of(*call) for name, call in operations.calls()}
    for name, model, shape, dtype in models():
        step, data = compiled(model, jit_compile=True).train_step, batch(shape, dtype)
        step(data)  # The call creates all variables, so that one trace is enough.
        texts[f"step of {name}"] = hlo_of(lambda *data: step(data), list(data))  # noqa: B023
    x = operations.number(4)

    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            looped = lambda n, x: (n + 1, tf.tanh(tf.exp(x)))  # noqa: E731
            _, y = tf.while_loop(lambda n, _: n < 3, looped, (0, x), maximum_iterations=3)
        return tape.gradient(y, x)

    texts["gradient of a loop"] = hlo_of(gradient, [x])
    texts["text in an assertion"] = hlo_of(lambda x: [tf.debugging.assert_less(x, 2.0, "it is large"), x][1], [x])
    texts["print"] = hlo_of(lambda x: [tf.print("It is", x), x][1], [x])
    return texts


# Other plain code.


def results() -> dict[str, Any]:
    """Returns the results of other plain TensorFlow code as numbers and texts."""
    x = operations.number(2, 4)
    values: dict[str, Any] = {"function": tf.function(lambda x: tf.nn.softmax(tf.tanh(x)))(x).numpy().tolist()}
    values["compiled"] = tf.function(lambda x: tf.nn.softmax(tf.tanh(x)), jit_compile=True)(x).numpy().tolist()
    numbers = tf.data.Dataset.range(20).shuffle(5, seed=3).map(lambda n: n * n, num_parallel_calls=2).batch(3)
    values["dataset"] = [part.tolist() for part in numbers.prefetch(2).as_numpy_iterator()]
    values["iterator"] = type(iter(numbers)).__name__
    for mode in ({"jit_compile": True}, {"jit_compile": False}, {"jit_compile": "auto"}, {"run_eagerly": True}):
        keras.utils.set_random_seed(7)
        _, model, shape, dtype = next(models())
        trained = compiled(model, **mode)
        data, labels = batch(shape, dtype)
        history = trained.fit(data, labels, epochs=2, batch_size=1, verbose=0, shuffle=False).history
        chosen = trained.jit_compile if "run_eagerly" not in mode else None
        values[f"fit {mode}"] = history, chosen, trained.predict(data, verbose=0).tolist()
    tf.random.set_seed(4)
    draw = lambda: tf.random.uniform([3])  # noqa: E731
    values["drawn"] = [tf.function(draw)().numpy().tolist(), draw().numpy().tolist()]
    values["print"] = _printed(lambda: tf.print("It is", x, {"a": x[0]}, [1, "b"], summarize=2, sep="|"))
    values["print in a function"] = _printed(tf.function(lambda: [tf.print(tf.strings.format("It is {}", x)), x][1]))
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with mirrored.scope():
        variable = tf.Variable(1.0)
    replica_id = lambda: tf.distribute.get_replica_context().replica_id_in_sync_group  # noqa: E731
    replica = tf.function(lambda: variable + tf.cast(replica_id(), tf.float32))
    values["mirrored"] = mirrored.reduce("SUM", mirrored.run(replica), None).numpy().item()
    with tf.distribute.OneDeviceStrategy("CPU:1").scope():
        values["one device"] = tf.Variable(1.0).device
    values["placed"] = (tf.Variable(1.0) + 1.0).device
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values["session"] = session.run(tf.nn.relu(tf.compat.v1.placeholder_with_default(x.numpy(), [2, 4]))).tolist()
    return values


def _printed(function: Callable[[], Any]) -> str:
    """Returns the text that a function writes to the file descriptor of stderr."""
    with tempfile.TemporaryFile() as file:
        descriptor = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            function()
        finally:
            os.dup2(descriptor, 2)
            os.close(descriptor)
        file.seek(0)
        return file.read().decode()


def state() -> dict[str, Any]:
    """Returns the settings that all code in the process shares."""
    loggers = {name: logger for name, logger in SEEN_BEFORE.items() if isinstance(logger, logging.Logger)}
    of, optimizer, wakeup = keras.config, tf.config.optimizer, signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return {
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("TENSORFLOW_IPU")},
        "signals": {number: repr(signal.getsignal(number)).partition(" at ")[0] for number in signal.valid_signals()},
        "wakeup": wakeup,
        "warnings": [repr(item) for item in warnings.filters],
        "loggers": {name: [item.level, item.propagate, len(item.handlers)] for name, item in loggers.items()},
        "root logger": [logging.root.level, len(logging.root.handlers), logging.root.manager.disable],
        "hooks": [
            repr(item).partition(" at ")[0] for item in (sys.excepthook, threading.excepthook, sys.unraisablehook)
        ],
        "finders": [repr(item).partition(" at ")[0] for item in (*sys.meta_path, *sys.path_hooks)],
        "collector": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks)],
        "printing": [sys.displayhook.__name__, np.geterr(), repr(np.get_printoptions())],
        "threads": [tf.config.threading.get_inter_op_parallelism_threads(), tf.config.get_soft_device_placement()],
        "keras": [of.floatx(), of.dtype_policy().name, of.is_traceback_filtering_enabled()],
        "strategy": type(tf.distribute.get_strategy()).__name__,
        "functions": [tf.config.functions_run_eagerly(), optimizer.get_jit(), optimizer.get_experimental_options()],
    }


def main() -> None:
    kind, file = sys.argv[1:]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    changed: list[str] = []
    if kind == "beside":
        importlib.import_module("tensorflow.python.autograph.core.config")
        original = functions()
        importlib.import_module("tensorflow_ipu.compat")
        run_programs()
        gc.collect()
        # The next use of the package does the same.
        importlib.import_module("tensorflow_ipu._base.lifetimes").call_due()
        changed = replaced(original)
    report = {"state": state(), "programs": programs(), "results": results(), "replaced": changed}
    pathlib.Path(file).write_text(json.dumps(report))


main()
