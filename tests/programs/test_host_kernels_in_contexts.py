"""Every host kernel in a branch, a loop, a slice and a mapped function: results equal TensorFlow's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.programs import _host_kernels

RANDOM = np.random.default_rng(5)
RAW: Any = tf.raw_ops
SEED = np.array([3, 4], np.int32)

Kernel = Callable[[Any], Any]


def array(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


WINDOW = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "SAME"}
CUBE = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 1, 1, 1, 1], "padding": "SAME"}
FLAT = {"strides": [1, 1, 1, 1], "padding": "SAME"}
SOLID = {"strides": [1, 1, 1, 1, 1], "padding": "SAME"}
IMAGES, VOLUMES = array(2, 4, 5, 3), array(1, 3, 4, 3, 2)
FILTER, SOLID_FILTER, DEEP_FILTER = array(2, 2, 3, 3), array(2, 2, 2, 2, 2), array(2, 2, 3, 1)
FEATURES, VARIANCES = array(3), np.array([0.5, 1.0, 2.0], np.float32)
NORM = {"scale": FEATURES, "offset": FEATURES, "mean": FEATURES * 0, "variance": VARIANCES, "is_training": False}
NORM_GRADIENT = {"scale": FEATURES, "reserve_space_1": FEATURES, "reserve_space_2": VARIANCES}
PARAMETERS = {"means": 0.5, "stddevs": 2.0, "minvals": -1.0, "maxvals": 3.0}


def typed(value: Any, like: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, like.dtype)


def of(op: str, *names: str, **arguments: Any) -> Kernel:
    """Calls an operation with its missing argument first; float32 arrays are cast to the input's type."""

    def call(x: Any) -> Any:
        options = {
            name: typed(value, x) if getattr(value, "dtype", None) == np.float32 and value.ndim > 1 else value
            for name, value in arguments.items()
        }
        result = getattr(RAW, op)(**dict.fromkeys(names, x), **options)
        return result[0] if isinstance(result, tuple) else result

    return call


def of_maxima(op: str, grad: np.ndarray, **window: Any) -> Kernel:
    pool = of(op.partition("Grad")[0], "input", **window)
    return lambda x: getattr(RAW, op)(orig_input=x, orig_output=pool(x), grad=typed(grad, x), **window)


BY_KEY = {
    "StatelessRandomGammaV3",
    "StatelessRandomNormalV2",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformV2",
    "StatelessShuffle",
    "StatelessTruncatedNormalV2",
}


def drawn(op: str, **arguments: Any) -> Kernel:
    """Draws with a seed from the input. An operation of the second kind gets it as key and counter."""

    def call(x: Any) -> Any:
        seed = SEED + tf.cast(tf.reshape(x, [-1])[:2] * 100, tf.int32)
        if op not in BY_KEY:
            return getattr(RAW, op)(seed=seed, **arguments)
        key, counter = RAW.StatelessRandomGetKeyCounter(seed=seed)
        options = {"alg": 1, **({} if op == "StatelessShuffle" else {"shape": [2, 3]}), **arguments}
        return getattr(RAW, op)(key=key, counter=counter, **options)

    return call


UNIFORM_INT = {"minval": np.int32(-9), "maxval": np.int32(9)}
# An operation that a host kernel computes, and its input.
# The arguments of an LSTM of 3 units: the kernel, the states, no mask.
STEPS = [array(9, 12), array(2, 3), [array(2, 3)], []]
STEPS_GRADIENT = [array(2, 4, 3), array(2, 4, 15), array(2, 4, 3), [array(2, 3)]]

KERNELS: dict[str, tuple[Kernel, np.ndarray]] = {
    "AvgPool": (of("AvgPool", "value", **WINDOW), IMAGES),
    "AvgPool3D": (of("AvgPool3D", "input", **CUBE), VOLUMES),
    "AvgPool3DGrad": (of("AvgPool3DGrad", "grad", orig_input_shape=VOLUMES.shape, **CUBE), VOLUMES),
    "AvgPoolGrad": (of("AvgPoolGrad", "grad", orig_input_shape=IMAGES.shape, **WINDOW), IMAGES),
    "Conv2D": (of("Conv2D", "input", filter=FILTER, **FLAT), IMAGES),
    "Conv2DBackpropFilter": (
        of("Conv2DBackpropFilter", "input", filter_sizes=FILTER.shape, out_backprop=IMAGES, **FLAT),
        IMAGES,
    ),
    "Conv2DBackpropInput": (
        of("Conv2DBackpropInput", "out_backprop", input_sizes=IMAGES.shape, filter=FILTER, **FLAT),
        IMAGES,
    ),
    "Conv3D": (of("Conv3D", "input", filter=SOLID_FILTER, **SOLID), VOLUMES),
    "Conv3DBackpropFilterV2": (
        of("Conv3DBackpropFilterV2", "input", filter_sizes=SOLID_FILTER.shape, out_backprop=VOLUMES, **SOLID),
        VOLUMES,
    ),
    "Conv3DBackpropInputV2": (
        of("Conv3DBackpropInputV2", "out_backprop", input_sizes=VOLUMES.shape, filter=SOLID_FILTER, **SOLID),
        VOLUMES,
    ),
    "DepthwiseConv2dNative": (of("DepthwiseConv2dNative", "input", filter=DEEP_FILTER, **FLAT), IMAGES),
    "DepthwiseConv2dNativeBackpropFilter": (
        of(
            "DepthwiseConv2dNativeBackpropFilter",
            "input",
            filter_sizes=DEEP_FILTER.shape,
            out_backprop=IMAGES,
            **FLAT,
        ),
        IMAGES,
    ),
    "DepthwiseConv2dNativeBackpropInput": (
        of(
            "DepthwiseConv2dNativeBackpropInput",
            "out_backprop",
            input_sizes=IMAGES.shape,
            filter=DEEP_FILTER,
            **FLAT,
        ),
        IMAGES,
    ),
    "FusedBatchNorm": (of("FusedBatchNorm", "x", **NORM), IMAGES),
    "FusedBatchNormGrad": (of("FusedBatchNormGrad", "y_backprop", x=IMAGES, **NORM_GRADIENT), IMAGES),
    "FusedBatchNormGradV2": (of("FusedBatchNormGradV2", "y_backprop", x=IMAGES, **NORM_GRADIENT), IMAGES),
    "FusedBatchNormGradV3": (
        of("FusedBatchNormGradV3", "y_backprop", x=IMAGES, reserve_space_3=FEATURES[:0], **NORM_GRADIENT),
        IMAGES,
    ),
    "FusedBatchNormV2": (of("FusedBatchNormV2", "x", **NORM), IMAGES),
    "FusedBatchNormV3": (of("FusedBatchNormV3", "x", **NORM), IMAGES),
    "IpuRecurrence": (lambda x: ops.ipu_recurrence(x, *STEPS)[0], array(2, 4, 5)),
    "IpuRecurrenceGrad": (lambda x: ops.ipu_recurrence_grad(x, *STEPS, *STEPS_GRADIENT)[0], array(2, 4, 5)),
    "MaxPool": (of("MaxPool", "input", **WINDOW), IMAGES),
    "MaxPool3D": (of("MaxPool3D", "input", **CUBE), VOLUMES),
    "MaxPool3DGrad": (of_maxima("MaxPool3DGrad", VOLUMES, **CUBE), VOLUMES),
    "MaxPool3DGradGrad": (of_maxima("MaxPool3DGradGrad", VOLUMES, **CUBE), VOLUMES),
    "MaxPoolGrad": (of_maxima("MaxPoolGrad", IMAGES, **WINDOW), IMAGES),
    "MaxPoolGradGrad": (of_maxima("MaxPoolGradGrad", IMAGES, **WINDOW), IMAGES),
    "ResizeBilinear": (of("ResizeBilinear", "images", size=[3, 7], half_pixel_centers=True), IMAGES),
    "ResizeBilinearGrad": (
        of("ResizeBilinearGrad", "original_image", grads=array(2, 3, 7, 3)[:, :, :, :], half_pixel_centers=True),
        IMAGES,
    ),
    "ResizeNearestNeighborGrad": (of("ResizeNearestNeighborGrad", "grads", size=[3, 7]), IMAGES),
    "StatelessMultinomial": (drawn("StatelessMultinomial", logits=FEATURES[None], num_samples=4), FEATURES),
    "StatelessParameterizedTruncatedNormal": (
        drawn("StatelessParameterizedTruncatedNormal", shape=[2, 3], **PARAMETERS),
        FEATURES,
    ),
    "StatelessRandomBinomial": (drawn("StatelessRandomBinomial", shape=[2, 3], counts=9.0, probs=0.4), FEATURES),
    "StatelessRandomGammaV2": (drawn("StatelessRandomGammaV2", shape=[2, 3], alpha=FEATURES**2), FEATURES),
    "StatelessRandomGammaV3": (drawn("StatelessRandomGammaV3", alpha=FEATURES**2), FEATURES),
    "StatelessRandomNormal": (drawn("StatelessRandomNormal", shape=[2, 3]), FEATURES),
    "StatelessRandomNormalV2": (drawn("StatelessRandomNormalV2"), FEATURES),
    "StatelessRandomPoisson": (
        drawn("StatelessRandomPoisson", shape=[2, 3], lam=FEATURES**2, dtype=tf.float32),
        FEATURES,
    ),
    "StatelessRandomUniform": (drawn("StatelessRandomUniform", shape=[2, 3]), FEATURES),
    "StatelessRandomUniformFullInt": (drawn("StatelessRandomUniformFullInt", shape=[2, 3], dtype=tf.int32), FEATURES),
    "StatelessRandomUniformFullIntV2": (drawn("StatelessRandomUniformFullIntV2", dtype=tf.int32), FEATURES),
    "StatelessRandomUniformInt": (drawn("StatelessRandomUniformInt", shape=[2, 3], **UNIFORM_INT), FEATURES),
    "StatelessRandomUniformIntV2": (drawn("StatelessRandomUniformIntV2", **UNIFORM_INT), FEATURES),
    "StatelessRandomUniformV2": (drawn("StatelessRandomUniformV2"), FEATURES),
    "StatelessShuffle": (drawn("StatelessShuffle", value=np.arange(7, dtype=np.int32)), FEATURES),
    "StatelessTruncatedNormal": (drawn("StatelessTruncatedNormal", shape=[2, 3]), FEATURES),
    "StatelessTruncatedNormalV2": (drawn("StatelessTruncatedNormalV2"), FEATURES),
    "TopKV2": (of("TopKV2", "input", k=3), FEATURES),
}
# The operations with key and counter call these.
CALLED = {"StatelessRandomGetAlg", "StatelessRandomGetKeyCounter"}

# These sums of products are not kernels of TensorFlow.
SUMS = {"Mean", "Sum"}

# `tf.vectorized_map` calls these in a loop, as `tf.map_fn` does.
WITHOUT_CONVERTER = {
    "Conv2DBackpropFilter",
    "Conv3D",
    "Conv3DBackpropFilterV2",
    "Conv3DBackpropInputV2",
    "FusedBatchNorm",
    "FusedBatchNormGrad",
    "IpuRecurrence",
    "IpuRecurrenceGrad",
    "FusedBatchNormGradV2",
    "FusedBatchNormV2",
    "ResizeBilinear",
    "ResizeBilinearGrad",
    "ResizeNearestNeighborGrad",
    "StatelessRandomBinomial",
    "StatelessRandomGammaV2",
    "StatelessRandomPoisson",
    *BY_KEY,
}
# TensorFlow has no float16 kernel for these operations.
WITHOUT_HALF = {
    "FusedBatchNorm",
    "FusedBatchNormGrad",
    "IpuRecurrence",
    "IpuRecurrenceGrad",
    "ResizeBilinearGrad",
    *(name for name in KERNELS if name.startswith(("AvgPool3D", "MaxPool3D"))),
}

TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)
Tensors = dict[str, Any]
Every = Callable[[Tensors], Tensors]


def places_of(values: Tensors, offset: Any = 0) -> Tensors:
    """Returns integers below 4 that depend on the values: the place of the maximum, which rounding does not move."""
    flat = {name: tf.reshape(tf.cast(value, tf.float32), [-1]) for name, value in values.items()}
    return {name: tf.math.floormod(tf.argmax(value, output_type=tf.int32), 4) + offset for name, value in flat.items()}


def slices_at(places: Tensors) -> Tensors:
    return {name: tf.slice(TABLE, [place, 0], [2, 4]) for name, place in places.items()}


def in_branch(every: Every, inputs: Tensors) -> Any:
    def chosen(scale: int) -> Any:
        values = every({name: scale * x for name, x in inputs.items()})
        return values, places_of(values)

    values, places = tf.cond(inputs["Conv2D"][0, 0, 0, 0] < 9, lambda: chosen(1), lambda: chosen(2))
    return values, {name: tf.slice(TABLE, tf.stack([place, 0]), [2, 3]) for name, place in places.items()}


def in_case(every: Every, inputs: Tensors) -> Any:
    number: Any = places_of(every({"TopKV2": inputs["TopKV2"]}))["TopKV2"]
    return tf.switch_case(number % 2, [lambda: every(inputs), lambda: every({name: -x for name, x in inputs.items()})])


def in_loop(every: Every, inputs: Tensors) -> Any:
    def body(i: Any, total: Any, last: Any) -> Any:
        values = every({name: x / tf.cast(i, x.dtype) for name, x in inputs.items()})
        slices = slices_at(places_of(values, i))
        return (
            i + 1,
            {name: total[name] + slices[name] + tf.constant(TABLE)[last[name]] for name in total},
            places_of(values),
        )

    begin = (tf.constant(1), slices_at(dict.fromkeys(KERNELS, 0)), places_of(every(inputs)))
    return tf.while_loop(lambda i, _, last: i < 2 + last["TopKV2"], body, begin)


def mapped(every: Every, inputs: Tensors) -> Any:
    stacked = {name: tf.stack([x, 2 * x]) for name, x in inputs.items()}
    types = {name: value.dtype for name, value in every(inputs).items()}
    return tf.map_fn(every, stacked, fn_output_signature=types)


def vectorized(every: Every, inputs: Tensors) -> Any:
    stacked = {name: tf.stack([x, 2 * x]) for name, x in inputs.items()}
    values = tf.vectorized_map(every, stacked)
    some = {name: values[name] for name in ("MaxPool", "StatelessRandomNormal", "TopKV2")}
    places = [places_of({name: value[row] for name, value in some.items()}) for row in range(2)]
    return values, tf.vectorized_map(slices_at, tf.nest.map_structure(lambda *both: tf.stack(both), *places))


def under_a_tape(every: Every, inputs: Tensors) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        tables = {name: tf.tile(tf.reshape(x, [-1])[:3], [3]) for name, x in inputs.items()}

        @tf.recompute_grad
        def sliced(*tables: Any) -> Any:
            places = places_of(every(inputs))
            return [tf.slice(table, [place], [2]) ** 2 for table, place in zip(tables, places.values(), strict=True)]

        loss = tf.add_n([tf.reduce_sum(value) for value in sliced(*tables.values())])
    return tape.gradient(loss, inputs)


def in_a_function_that_is_called(every: Every, inputs: Tensors) -> Any:
    @ipu.ops.functional_ops.outlined_function
    def places(first: Any, second: Any) -> Any:
        return places_of(every(first)), second

    starts, moved = places(inputs, inputs["Conv2D"])
    barred = dict(zip(starts, tf.tuple(list(starts.values())), strict=True))
    return (
        slices_at(starts),
        {name: tf.slice(TABLE, tf.stack([start, 0]), [2, 4]) for name, start in barred.items()},
        moved,
    )


CONTEXTS = [in_branch, in_case, in_loop, mapped, vectorized, under_a_tape, in_a_function_that_is_called]


def assert_near(actual: Any, expected: Any, tolerance: float, name: str = "") -> None:
    if isinstance(actual, dict):
        for key, value in actual.items():
            assert_near(value, expected[key], tolerance, key)
    elif isinstance(actual, (list, tuple)):
        for actual_value, expected_value in zip(actual, expected, strict=True):
            assert_near(actual_value, expected_value, tolerance, name)
    else:
        actual_value, expected_value = (np.asarray(tf.cast(value, tf.float32)) for value in (actual, expected))
        np.testing.assert_allclose(
            actual_value, expected_value, tolerance, tolerance * np.max(np.abs(expected_value), initial=1), err_msg=name
        )


def every(inputs: Tensors) -> Tensors:
    return {name: KERNELS[name][0](x) for name, x in inputs.items()}


def calls() -> Counter[str]:
    """Returns the number of calls of each host kernel so far."""
    prefix = "HostKernelCalls:"
    names = [name for name in ipu.counter_names() if name.startswith(prefix)]
    return Counter({name.removeprefix(prefix): ipu.counter_value(name) or 0 for name in names})


def test_all_kernels_of_the_host_are_here():
    assert set(KERNELS) | CALLED | SUMS == set(_host_kernels._LAYERS)


# A value of a custom call as the place of a slice failed with "Dynamic inferencing on custom call". As an element of
# the result of a function of two arguments, it ended the process.
@pytest.mark.parametrize("context", CONTEXTS)
def test_kernels_of_the_host_have_the_numbers_of_tensorflow_wherever_they_are(context, strategy):
    names = set(KERNELS) - (WITHOUT_CONVERTER if context is vectorized else set())
    inputs = {name: tf.constant(KERNELS[name][1]) for name in sorted(names)}
    with strategy.scope():  # XLA would treat the value of an argument in one run as a constant.
        elements = iter(tf.data.Dataset.from_tensors(inputs))
    calls_before = calls()
    with _host_kernels.wherever_known():
        actual = strategy.run(
            tf.function(lambda iterator: context(every, next(iterator)), jit_compile=True), (elements,)
        )
    expected = tf.function(lambda inputs: context(every, inputs))(inputs)
    assert_near(actual, expected, 1e-5)
    assert names <= {name for name, count in calls().items() if count > calls_before[name]}


@pytest.mark.parametrize("dtype", [tf.float16, tf.float32])
def test_kernels_of_the_host_have_the_numbers_of_tensorflow_on_replicas(dtype, replicas):
    strategy = replicas(2)
    names = [name for name in KERNELS if dtype == tf.float32 or name not in WITHOUT_HALF]
    inputs = {name: tf.cast(KERNELS[name][1], dtype) for name in names}

    def values(inputs: Tensors, scale: Any) -> Tensors:
        scaled = {name: tf.cast(scale, x.dtype) * x for name, x in inputs.items()}
        return tf.cond(tf.greater(scale, 9), lambda: every(inputs), lambda: every(scaled))

    @tf.function(jit_compile=True)
    def program(inputs: Tensors) -> Any:
        scale = ipu.ops.replication_ops.replication_index() + 1
        actual = values(inputs, scale)
        queue.enqueue({name: tf.cast(value, tf.float32) for name, value in actual.items()})
        slices = slices_at(places_of(actual))
        return {name: ipu.ops.cross_replica_ops.cross_replica_sum(value) for name, value in slices.items()}

    queue = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
    with _host_kernels.wherever_known():
        sums = strategy.run(program, (inputs,))
    actual = queue.dequeue()
    expected = [tf.function(values)(inputs, scale) for scale in (1, 2)]
    for replica in range(2):
        of_replica = {name: value[replica] for name, value in actual.items()}
        assert_near(of_replica, expected[replica], 1e-5 if dtype == tf.float32 else 2e-2)
    first, second = (
        slices_at(places_of({name: value[replica] for name, value in actual.items()})) for replica in range(2)
    )
    assert_near(sums, {name: first[name] + second[name] for name in first}, 0)


# The order of an axis, sorted during compilation, failed with "must be a compile-time constant".
def test_what_xla_computes_while_it_compiles_may_make_up_shapes(strategy):
    def program(x: Any) -> Any:
        back = tf.argsort([2, 0, 1])
        lengths = tf.sort(np.arange(5000) % 7)
        checked = tf.debugging.check_numerics(tf.constant(3.0), "length")
        pooled = tf.nn.max_pool(tf.reshape(tf.constant([1.0, 4.0, 2.0, 3.0]), [1, 4, 1, 1]), [4, 1], 1, "VALID")
        shaped = tf.cond(x[0, 0, 0] > 0, lambda: tf.zeros([lengths[-1]]), lambda: tf.ones([lengths[-1]]))
        filled = tf.fill([tf.cast(checked, tf.int32), tf.cast(pooled[0, 0, 0, 0], tf.int32)], 1.0)
        return tf.transpose(x, back), shaped, filled, x[lengths[700] :]

    x = tf.constant(array(2, 3, 4))
    results = strategy.run(tf.function(program, jit_compile=True), (x,))
    for actual, expected in zip(results, program(x), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_checks_of_constants_still_end_the_run(strategy):
    @tf.function(jit_compile=True)
    def program(x: Any) -> Any:
        return x + tf.debugging.check_numerics(tf.constant(np.nan, tf.float32), "a constant")

    with pytest.raises(tf.errors.InvalidArgumentError, match="a constant : Tensor had NaN"):
        strategy.run(program, (tf.constant(1.0),))
