"""Calls of `tf.raw_ops` that XLA compiles for the CPU, with small inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

raw: Any = tf.raw_ops

Call = tuple[Callable[..., Any], list[Any]]

UNARY = """Abs Acos Acosh Asin Asinh Atan Atanh BesselI0e BesselI1e Ceil Conj Cos Cosh Digamma Erf Erfc Erfinv Exp Expm1
Floor Inv IsFinite IsInf IsNan Lgamma Log Log1p Ndtri Neg OnesLike Reciprocal Rint Round Rsqrt Sigmoid Sign Sin Sinh Sqrt
Square Tan Tanh Unique ZerosLike"""
BINARY = """Add AddV2 ApproximateEqual Div DivNoNan Equal FloorDiv FloorMod Greater GreaterEqual Less LessEqual Maximum
Minimum Mod Mul MulNoNan NotEqual Pow RealDiv SquaredDifference Sub TruncateDiv TruncateMod Xdivy Xlog1py Xlogy"""
ACTIVATION_GRADIENTS = "LeakyReluGrad Relu6Grad ReluGrad SoftplusGrad SoftsignGrad"
SEGMENTS = "UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum"
SORTED_SEGMENTS = "SegmentMaxV2 SegmentMinV2 SegmentProdV2 SegmentSumV2"
TENSOR_SCATTERS = "TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate"
OF_BITS = "DataFormatDimMap DataFormatVecPermute Invert InvertPermutation PopulationCount"
DRAWS = "StatelessRandomNormal StatelessRandomUniform StatelessTruncatedNormal"
DRAWS_BY_KEY = "StatelessRandomNormalV2 StatelessRandomUniformV2 StatelessTruncatedNormalV2"


def number(*shape: int, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Returns floats between 0 and 1, or integers from 1 to 3."""
    count = int(np.prod(shape))
    values = np.arange(count) % 3 + 1 if dtype.is_integer else np.linspace(0.1, 0.9, count)
    return tf.constant(values.reshape(shape).astype(dtype.as_numpy_dtype))


def calls() -> Iterator[tuple[str, Call]]:
    """Yields each call: its name, such as `Abs float32`, and a function with its arguments."""
    for dtype in (tf.float32, tf.float16, tf.int64):
        yield from _families(dtype)
    for dtype in (tf.float32, tf.int64):
        yield from _arrays(dtype)
    for dtype in (tf.float32, tf.float16):
        yield from _layers(dtype)
        yield from _updates(dtype)
    for group in (_whole_numbers, _complex_numbers, _draws, _linear_algebra, _lists):
        yield from group()


def _calls_of(names: str, dtype: tf.DType, /, **inputs: Any) -> Iterator[tuple[str, Call]]:
    """Yields the calls of operations with the same inputs. Tensors are arguments, and other inputs are constants."""
    fed = {name: value for name, value in inputs.items() if isinstance(value, tf.Tensor)}
    constants = {name: value for name, value in inputs.items() if name not in fed}
    for name in names.split():
        yield f"{name} {dtype.name}", (_calling(getattr(raw, name), list(fed), constants), list(fed.values()))


def _calling(operation: Any, names: list[str], constants: dict[str, Any]) -> Callable[..., Any]:
    return lambda *values: operation(**dict(zip(names, values, strict=True)), **constants)


def _families(dtype: tf.DType) -> Iterator[tuple[str, Call]]:
    vector, matrix = number(4, dtype=dtype), number(2, 4, dtype=dtype)
    yield from _calls_of(UNARY, dtype, x=vector)
    yield from _calls_of(BINARY, dtype, x=vector, y=vector[::-1])
    yield from _calls_of("Identity PreventGradient Rank Shape Size Snapshot Squeeze StopGradient", dtype, input=matrix)
    yield from _calls_of("Elu LeakyRelu Relu Relu6 Selu Softplus Softsign", dtype, features=matrix)
    yield from _calls_of(ACTIVATION_GRADIENTS, dtype, gradients=vector, features=vector)
    yield from _calls_of("EluGrad SeluGrad", dtype, gradients=vector, outputs=vector)
    yield from _calls_of("ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad", dtype, y=vector, dy=vector)
    yield from _calls_of("Max Mean Min Prod Sum", dtype, input=matrix, axis=[1])
    yield from _calls_of("Cumprod Cumsum CumulativeLogsumexp", dtype, x=matrix, axis=1)
    yield from _calls_of("Igamma IgammaGradA Igammac Polygamma", dtype, a=vector, x=vector)
    yield from _calls_of("Zeta", dtype, x=vector + 1, q=vector)
    yield from _calls_of("NextAfter", dtype, x1=vector, x2=vector)
    yield from _calls_of("Atan2", dtype, y=vector, x=vector)
    yield from _calls_of("Betainc", dtype, a=vector, b=vector, x=vector)
    yield from _calls_of("ArgMax ArgMin", dtype, input=matrix, dimension=1)
    yield from _calls_of("ClipByValue", dtype, t=matrix, clip_value_min=0, clip_value_max=1)
    yield from _calls_of("L2Loss", dtype, t=vector)


def _arrays(dtype: tf.DType) -> Iterator[tuple[str, Call]]:
    vector, matrix, image = number(4, dtype=dtype), number(2, 4, dtype=dtype), number(1, 4, 4, 4, dtype=dtype)
    places = tf.constant([[0], [2]])
    yield from _calls_of("AddN", dtype, inputs=[1.0, 2.0] if dtype.is_floating else [1, 2])
    four = number(4, 2, 2, 1, dtype=dtype)
    yield from _calls_of("BatchToSpaceND", dtype, input=four, block_shape=[2, 2], crops=[[0, 0]] * 2)
    yield from _calls_of("Bitcast", dtype, input=vector, type=tf.uint8)
    yield from _calls_of("BroadcastTo", dtype, input=vector, shape=[3, 4])
    yield from _calls_of("Cast", dtype, x=vector, DstT=tf.float32)
    yield from _calls_of("CheckNumerics", dtype, tensor=vector, message="it is no number")
    yield f"Concat {dtype.name}", (lambda x: raw.ConcatV2(values=[x, x], axis=0), [vector])
    yield from _calls_of("DepthToSpace SpaceToDepth", dtype, input=image, block_size=2)
    yield from _calls_of("Diag MatrixDiag", dtype, diagonal=vector)
    yield from _calls_of("ExpandDims", dtype, input=vector, axis=0)
    yield from _calls_of("Fill", dtype, dims=[3, 2], value=vector[0])
    yield from _calls_of("GatherNd", dtype, params=vector, indices=places)
    yield from _calls_of("GatherV2", dtype, params=matrix, indices=tf.constant([1, 0, 1]), axis=1)
    yield from _calls_of("MatrixBandPart", dtype, input=matrix, num_lower=1, num_upper=0)
    yield from _calls_of("MatrixSetDiag", dtype, input=number(4, 4, dtype=dtype), diagonal=vector)
    yield from _calls_of("MirrorPad", dtype, input=matrix, paddings=[[0, 0], [1, 1]], mode="REFLECT")
    yield from _calls_of("OneHot", dtype, indices=tf.constant([0, 2]), depth=3, on_value=vector[0], off_value=vector[1])
    yield f"Pack {dtype.name}", (lambda x: raw.Pack(values=[x, x]), [vector])
    yield from _calls_of("Pad", dtype, input=matrix, paddings=[[1, 0], [0, 1]])
    yield from _calls_of("PadV2", dtype, input=matrix, paddings=[[1, 0], [0, 1]], constant_values=vector[0])
    yield from _calls_of("Range", dtype, start=1, limit=7, delta=2)
    yield from _calls_of("Reshape", dtype, tensor=matrix, shape=[4, 2])
    yield from _calls_of("ReverseSequence", dtype, input=matrix, seq_lengths=tf.constant([1, 2]), seq_dim=1)
    yield from _calls_of("ReverseV2", dtype, tensor=matrix, axis=[1])
    yield from _calls_of("Roll", dtype, input=vector, shift=1, axis=0)
    yield from _calls_of("ScatterNd", dtype, indices=places, updates=vector[:2], shape=[4])
    yield from _calls_of(SEGMENTS, dtype, data=vector, segment_ids=tf.constant([0, 1, 0, 2]), num_segments=3)
    yield from _calls_of(SORTED_SEGMENTS, dtype, data=vector, segment_ids=tf.constant([0, 0, 1, 2]), num_segments=3)
    yield from _calls_of("SelectV2", dtype, condition=tf.constant([True, False] * 2), t=vector, e=vector[::-1])
    yield from _calls_of("Slice", dtype, input=matrix, begin=[0, 1], size=[2, 2])
    yield from _calls_of("SpaceToBatchND", dtype, input=image, block_shape=[2, 2], paddings=[[0, 0]] * 2)
    yield from _calls_of("Split", dtype, axis=1, value=matrix, num_split=2)
    yield from _calls_of("SplitV", dtype, value=matrix, size_splits=[1, 3], axis=1, num_split=2)
    yield from _calls_of("StridedSlice", dtype, input=matrix, begin=[0, 1], end=[2, 4], strides=[1, 2])
    yield from _calls_of("StridedSliceGrad", dtype, shape=[4], begin=[0], end=[4], strides=[2], dy=vector[:2])
    yield from _calls_of(TENSOR_SCATTERS, dtype, tensor=vector, indices=places, updates=vector[:2])
    yield from _calls_of("Tile", dtype, input=matrix, multiples=[2, 1])
    yield from _calls_of("TopKV2", dtype, input=vector, k=2)
    yield from _calls_of("Transpose ConjugateTranspose", dtype, x=matrix, perm=[1, 0])
    yield from _calls_of("Unpack", dtype, value=matrix, num=2)
    yield from _calls_of("Where", dtype, condition=vector)
    yield f"Assert {dtype.name}", (_asserted, [vector])


def _asserted(x: Any) -> Any:
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x > 0), ["It is not what it is:", x])]):
        return x + x


def _layers(dtype: tf.DType) -> Iterator[tuple[str, Call]]:
    image, small, filter_ = (number(*shape, dtype=dtype) for shape in ((1, 4, 4, 2), (1, 2, 2, 2), (2, 2, 2, 2)))
    matrix, vector = number(2, 4, dtype=dtype), number(4, dtype=dtype)
    same: dict[str, Any] = {"strides": [1, 2, 2, 1], "padding": "SAME"}
    windows: dict[str, Any] = {"ksize": [1, 2, 2, 1], **same}
    yield from _calls_of("Conv2D DepthwiseConv2dNative", dtype, input=image, filter=filter_, **same)
    yield from _calls_of(
        "Conv2DBackpropInput", dtype, input_sizes=[1, 4, 4, 2], filter=filter_, out_backprop=small, **same
    )
    yield from _calls_of("Conv2DBackpropFilter", dtype, input=image, filter_sizes=[2] * 4, out_backprop=small, **same)
    of_each: dict[str, Any] = {"out_backprop": number(1, 2, 2, 4, dtype=dtype), **same}
    yield from _calls_of(
        "DepthwiseConv2dNativeBackpropInput", dtype, input_sizes=[1, 4, 4, 2], filter=filter_, **of_each
    )
    yield from _calls_of("DepthwiseConv2dNativeBackpropFilter", dtype, input=image, filter_sizes=[2] * 4, **of_each)
    solid, cube = number(1, 4, 4, 4, 2, dtype=dtype), number(2, 2, 2, 2, 2, dtype=dtype)
    halved: dict[str, Any] = {"strides": [1, 2, 2, 2, 1], "padding": "VALID"}
    out = number(1, 2, 2, 2, 2, dtype=dtype)
    yield from _calls_of("Conv3D", dtype, input=solid, filter=cube, **halved)
    yield from _calls_of(
        "Conv3DBackpropInputV2", dtype, input_sizes=solid.shape, filter=cube, out_backprop=out, **halved
    )
    yield from _calls_of("Conv3DBackpropFilterV2", dtype, input=solid, filter_sizes=[2] * 5, out_backprop=out, **halved)
    yield from _calls_of("AvgPool", dtype, value=image, **windows)
    yield from _calls_of("AvgPoolGrad", dtype, orig_input_shape=[1, 4, 4, 2], grad=small, **windows)
    yield from _calls_of("MaxPool", dtype, input=image, **windows)
    yield from _calls_of("MaxPoolGrad", dtype, orig_input=image, orig_output=small, grad=small, **windows)
    yield from _calls_of("MaxPoolGradGrad", dtype, orig_input=image, orig_output=small, grad=image, **windows)
    in_space: dict[str, Any] = {"ksize": [1, 2, 2, 2, 1], **halved}
    yield from _calls_of("AvgPool3D MaxPool3D", dtype, input=solid, **in_space)
    yield from _calls_of("AvgPool3DGrad", dtype, orig_input_shape=solid.shape, grad=out, **in_space)
    yield from _calls_of("MaxPool3DGrad", dtype, orig_input=solid, orig_output=out, grad=out, **in_space)
    scale = number(2)
    norm: dict[str, Any] = {"x": image, "scale": scale}
    yield from _calls_of("FusedBatchNormV2 FusedBatchNormV3", dtype, **norm, offset=scale, mean=[], variance=[])
    constants: dict[str, Any] = {"mean": scale, "variance": scale, "is_training": False}
    for name, call in _calls_of("FusedBatchNormV3", dtype, **norm, offset=scale, **constants):
        yield f"{name} inference", call
    reserved: dict[str, Any] = {"reserve_space_1": scale, "reserve_space_2": scale}
    yield from _calls_of("FusedBatchNormGradV2", dtype, y_backprop=image, **norm, **reserved)
    yield from _calls_of("FusedBatchNormGradV3", dtype, y_backprop=image, **norm, **reserved, reserve_space_3=scale)
    yield from _calls_of("LRN", dtype, input=image)
    yield from _calls_of("LRNGrad", dtype, input_grads=image, input_image=image, output_image=image)
    yield from _calls_of("Softmax LogSoftmax", dtype, logits=matrix)
    yield from _calls_of("SoftmaxCrossEntropyWithLogits", dtype, features=matrix, labels=matrix)
    labels = tf.constant([1, 3], tf.int64)
    yield from _calls_of("SparseSoftmaxCrossEntropyWithLogits", dtype, features=matrix, labels=labels)
    yield from _calls_of("BiasAdd BiasAddV1", dtype, value=matrix, bias=vector)
    yield from _calls_of("BiasAddGrad", dtype, out_backprop=matrix)
    yield from _calls_of("ResizeBilinear ResizeNearestNeighbor", dtype, images=image, size=[3, 3])
    yield from _calls_of("ResizeBilinearGrad", dtype, grads=number(1, 3, 3, 2), original_image=image)
    yield from _calls_of("MatMul", dtype, a=matrix, b=matrix, transpose_b=True)
    yield from _calls_of("BatchMatMul BatchMatMulV2", dtype, x=matrix, y=matrix, adj_y=True)
    yield from _calls_of("BatchMatMulV3", dtype, x=matrix, y=matrix, adj_y=True, Tout=dtype)
    yield f"Einsum {dtype.name}", (lambda x: raw.Einsum(inputs=[x, x], equation="ab,cb->ac"), [matrix])
    colors = number(1, 2, 2, 3, dtype=dtype)
    yield from _calls_of("AdjustContrastv2", dtype, images=colors, contrast_factor=0.5)
    yield from _calls_of("AdjustHue", dtype, images=colors, delta=0.5)
    yield from _calls_of("AdjustSaturation", dtype, images=colors, scale=0.5)
    yield from _calls_of("HSVToRGB RGBToHSV", dtype, images=colors)
    yield from _calls_of("FakeQuantWithMinMaxArgs", dtype, inputs=vector)
    yield from _calls_of("FakeQuantWithMinMaxVars", dtype, inputs=vector, min=0.0, max=1.0)
    yield from _calls_of("QuantizeAndDequantizeV2", dtype, input=vector, input_min=0.0, input_max=1.0)
    patches = {"ksizes": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "rates": [1] * 4, "padding": "VALID"}
    yield from _calls_of("ExtractImagePatches", dtype, images=image, **patches)


def _updates(dtype: tf.DType) -> Iterator[tuple[str, Call]]:
    """Yields the calls that update variables: updates of optimizers and assignments."""
    for name, slots, constants in (
        *((f"Assign{kind}VariableOp", (), {}) for kind in ("", "Add", "Sub")),
        ("ResourceApplyGradientDescent", ("var",), {"alpha": 0.1}),
        ("ResourceApplyMomentum", ("var", "accum"), {"lr": 0.1, "momentum": 0.9}),
        ("ResourceApplyKerasMomentum", ("var", "accum"), {"lr": 0.1, "momentum": 0.9}),
        ("ResourceApplyAdagrad", ("var", "accum"), {"lr": 0.1}),
        ("ResourceApplyAdagradV2", ("var", "accum"), {"lr": 0.1, "epsilon": 0.1}),
        ("ResourceApplyAdadelta", ("var", "accum", "accum_update"), {"lr": 0.1, "rho": 0.9, "epsilon": 0.1}),
        ("ResourceApplyRMSProp", ("var", "ms", "mom"), {"lr": 0.1, "rho": 0.9, "momentum": 0.9, "epsilon": 0.1}),
        ("ResourceApplyPowerSign", ("var", "m"), {"lr": 0.1, "logbase": 0.1, "sign_decay": 0.9, "beta": 0.9}),
        ("ResourceApplyAddSign", ("var", "m"), {"lr": 0.1, "alpha": 0.1, "sign_decay": 0.9, "beta": 0.9}),
        ("ResourceApplyProximalGradientDescent", ("var",), {"alpha": 0.1, "l1": 0.1, "l2": 0.1}),
        ("ResourceApplyProximalAdagrad", ("var", "accum"), {"lr": 0.1, "l1": 0.1, "l2": 0.1}),
        ("ResourceApplyFtrl", ("var", "accum", "linear"), {"lr": 0.1, "l1": 0.1, "l2": 0.1, "lr_power": -0.5}),
        ("ResourceApplyAdaMax", ("var", "m", "v"), {"beta1_power": 0.9, "lr": 0.1, **_BETAS}),
        ("ResourceApplyAdam", ("var", "m", "v"), {"beta1_power": 0.9, "beta2_power": 0.9, "lr": 0.1, **_BETAS}),
    ):
        variables = [tf.Variable(number(4, dtype=dtype)) for _ in slots or ("resource",)]
        yield (
            f"{name} {dtype.name}",
            (_updating(getattr(raw, name), slots, constants, variables), [number(4, dtype=dtype)]),
        )


def _updating(operation: Any, slots: Any, constants: Any, variables: list[tf.Variable]) -> Callable[..., Any]:
    def call(delta: Any) -> Any:
        handles = [variable.handle for variable in variables]
        if slots:
            gradient = "delta" if slots == ("var",) else "grad"
            operation(**dict(zip(slots, handles, strict=True)), **constants, **{gradient: delta})
        else:
            operation(resource=handles[0], value=delta)
        return [variable.read_value() for variable in variables]

    return call


_BETAS = {"beta1": 0.9, "beta2": 0.9, "epsilon": 0.1}


def _whole_numbers() -> Iterator[tuple[str, Call]]:
    for dtype in (tf.int32, tf.int64):
        vector = tf.constant([3, 1, 0, 2], dtype)
        yield from _calls_of("BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift", dtype, x=vector, y=vector)
        yield from _calls_of(OF_BITS, dtype, x=vector)
    truth = tf.constant([True, False, True, False])
    yield from _calls_of("LogicalAnd LogicalOr", tf.bool, x=truth, y=truth[::-1])
    yield from _calls_of("LogicalNot", tf.bool, x=truth)
    yield from _calls_of("All Any", tf.bool, input=truth, axis=[0])
    yield from _calls_of("BroadcastArgs BroadcastGradientArgs", tf.int32, s0=[2, 1], s1=[1, 3])
    yield from _calls_of("LowerBound UpperBound", tf.float32, sorted_inputs=number(2, 4), values=number(2, 4))
    yield from _calls_of("DenseBincount", tf.int32, input=tf.constant([1, 0, 1]), size=3, weights=number(3))
    yield from _calls_of("Bucketize", tf.float32, input=number(4), boundaries=[0.2, 0.5])


def _complex_numbers() -> Iterator[tuple[str, Call]]:
    vector = tf.complex(number(4), number(4))
    matrix = tf.complex(number(4, 4), number(4, 4))
    yield from _calls_of("Complex", tf.complex64, real=number(4), imag=number(4))
    yield from _calls_of("Angle Conj FFT IFFT Imag Real", tf.complex64, input=vector)
    yield from _calls_of("ComplexAbs Exp Tanh Sign Sqrt", tf.complex64, x=vector)
    yield from _calls_of("FFT2D IFFT2D", tf.complex64, input=matrix)
    yield from _calls_of("FFT3D IFFT3D", tf.complex64, input=matrix[None])
    yield from _calls_of("RFFT", tf.float32, input=number(4), fft_length=[4])
    yield from _calls_of("IRFFT", tf.complex64, input=vector, fft_length=[4])
    yield from _calls_of("RFFT2D", tf.float32, input=number(4, 4), fft_length=[4, 4])
    yield from _calls_of("IRFFT2D", tf.complex64, input=matrix, fft_length=[4, 4])


def _draws() -> Iterator[tuple[str, Call]]:
    seed, key, counter = tf.constant([1, 2]), tf.constant([3], tf.uint64), tf.constant([4, 5], tf.uint64)
    for dtype in (tf.float32, tf.float16):
        yield from _calls_of(DRAWS, dtype, shape=[2, 3], seed=seed, dtype=dtype)
        yield from _calls_of(DRAWS_BY_KEY, dtype, shape=[2, 3], key=key, counter=counter, alg=1, dtype=dtype)
        yield from _calls_of("RandomStandardNormal RandomUniform TruncatedNormal", dtype, shape=[2, 3], dtype=dtype)
    limits = {"minval": tf.constant(0), "maxval": tf.constant(9)}
    yield from _calls_of("StatelessRandomUniformInt", tf.int32, shape=[4], seed=seed, **limits)
    yield from _calls_of("StatelessRandomUniformIntV2", tf.int32, shape=[4], key=key, counter=counter, alg=1, **limits)
    yield from _calls_of("StatelessRandomUniformFullInt", tf.int32, shape=[4], seed=seed, dtype=tf.int32)
    yield from _calls_of("RandomUniformInt", tf.int32, shape=[4], **limits)
    yield from _calls_of("RandomShuffle", tf.float32, value=number(4))
    yield from _calls_of("StatelessMultinomial", tf.float32, logits=number(2, 4), num_samples=3, seed=seed)
    yield from _calls_of("Multinomial", tf.float32, logits=number(2, 4), num_samples=3)
    yield from _calls_of("StatelessRandomGetKeyCounter", tf.int32, seed=seed)
    yield from _calls_of("StatelessRandomGetAlg", tf.int32)
    yield from _calls_of("RandomGammaGrad", tf.float32, alpha=number(4), sample=number(4))


def _linear_algebra() -> Iterator[tuple[str, Call]]:
    matrix = number(4, 4) + 4 * tf.eye(4)
    yield from _calls_of("Cholesky DiagPart MatrixDiagPart Qr SelfAdjointEigV2 Svd", tf.float32, input=matrix)
    yield from _calls_of("MatrixInverse", tf.float32, input=matrix)
    yield from _calls_of("MatrixSolve MatrixTriangularSolve", tf.float32, matrix=matrix, rhs=matrix)
    yield from _calls_of("Cross", tf.float32, a=number(2, 3), b=number(2, 3))
    yield from _calls_of("MatrixDiagV3", tf.float32, diagonal=number(4), k=0, num_rows=4, num_cols=4, padding_value=0.0)
    yield from _calls_of("MatrixDiagPartV3", tf.float32, input=matrix, k=0, padding_value=0.0)
    yield from _calls_of("MatrixSetDiagV3", tf.float32, input=matrix, diagonal=number(4), k=0)
    yield from _calls_of("NonMaxSuppressionV4", tf.float32, boxes=number(4, 4), scores=number(4), **_SUPPRESSION)


_SUPPRESSION = {"max_output_size": 2, "iou_threshold": 0.5, "score_threshold": 0.1, "pad_to_max_output_size": True}


def _lists() -> Iterator[tuple[str, Call]]:
    def stacked(x: Any) -> Any:
        handle = raw.TensorListReserve(element_shape=[4], num_elements=3, element_dtype=tf.float32)
        for place in range(3):
            handle = raw.TensorListSetItem(input_handle=handle, index=place, item=x)
        first = raw.TensorListGetItem(input_handle=handle, index=0, element_shape=[4], element_dtype=tf.float32)
        shape = {"element_shape": [4], "element_dtype": tf.float32}
        return first, raw.TensorListStack(input_handle=handle, **shape), raw.TensorListLength(input_handle=handle)

    name = "TensorListStack TensorListReserve TensorListSetItem TensorListGetItem TensorListLength"
    yield name, (stacked, [number(4)])

    def popped(x: Any) -> Any:
        handle = raw.EmptyTensorList(element_shape=[4], max_num_elements=3, element_dtype=tf.float32)
        handle = raw.TensorListPushBack(input_handle=handle, tensor=x)
        return raw.TensorListPopBack(input_handle=handle, element_shape=[4], element_dtype=tf.float32)[1]

    yield "TensorListPopBack EmptyTensorList TensorListPushBack", (popped, [number(4)])
    of_tensor = lambda x: raw.TensorListStack(  # noqa: E731
        input_handle=raw.TensorListFromTensor(tensor=x, element_shape=[4]), element_shape=[4], element_dtype=tf.float32
    )
    yield "TensorListFromTensor", (of_tensor, [number(2, 4)])
    loop = tf.function(lambda x: tf.while_loop(lambda n, _: n < 3, lambda n, x: (n + 1, tf.tanh(x)), (0, x)))
    yield "StatelessWhile", (loop, [number(4)])
    branch = tf.function(lambda x: tf.cond(x[0] > 0, lambda: tf.exp(x), lambda: tf.sqrt(x)))
    yield "StatelessIf", (branch, [number(4)])
    switch = tf.function(lambda n, x: tf.switch_case(n, [lambda: tf.exp(x), lambda: tf.sqrt(x), lambda: x]))
    yield "StatelessCase", (switch, [tf.constant(1), number(4)])
