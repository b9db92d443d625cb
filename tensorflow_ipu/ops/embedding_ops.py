"""Lookups in embedding tables: in the program, and on the host."""

from __future__ import annotations

import contextlib
import mmap
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import Faults, check_bool, check_int, is_number
from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import graphs, variables
from tensorflow_ipu.feeds._native_object import NativeObject
from tensorflow_ipu.feeds.elements import device_of
from tensorflow_ipu.ops import sites

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, ShapeLike, TensorLike

__all__ = [
    "HostEmbedding",
    "HostEmbeddingOptimizerSpec",
    "HostEmbeddingSGDGAOptimizerSpec",
    "create_host_embedding",
    "embedding_lookup",
]


# Python's `mmap` has the name from 3.13 on.
_NO_RESERVE = 0x4000


class HostTable(NativeObject):
    """Rows of zeros whose memory the system gives as they are written, so that a table may be larger than memory."""

    def __init__(self, rows: int, width: int, dtype: tf.DType) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        memory = mmap.mmap(-1, rows * width * dtype.size, flags=flags)
        self.array: np.ndarray = np.frombuffer(memory, dtype.as_numpy_dtype).reshape(rows, width)
        address = self.array.ctypes.data
        number = native.ipu_embedding_new(address, rows, width, dtype == tf.float16)
        super().__init__(number, native.ipu_embedding_drop, keep=self.array)

    def tensor(self) -> tf.Tensor:
        """Makes a host tensor in this same memory: it shows what programs write."""
        return tf.experimental.dlpack.from_dlpack(self.array.__dlpack__())

    def is_behind(self, tensor: tf.Tensor) -> bool:
        """Returns True if an eager host tensor is in this memory."""
        memory: Any = tensor  # Its stub lacks the buffer protocol.
        return np.asarray(memoryview(memory)).ctypes.data == self.array.ctypes.data

    def open(self, is_open: bool) -> None:
        """Allows or forbids programs to use the table."""
        native.ipu_embedding_open(self.number, is_open)


@tf.RegisterGradient("IpuEmbeddingLookup")
def _gradient(op: tf.Operation, upstream: tf.Tensor | tf.IndexedSlices) -> list[tf.Tensor | None]:
    """Updates the table, and returns the gradient of `trained`, which is zero."""
    real = op.outputs[0].op  # A tape shows another one.
    state, indices, _ = real.inputs
    done = ops.ipu_embedding_update(
        state,
        indices,
        tf.convert_to_tensor(upstream),
        learning_rate=real.get_attr(LEARNING_RATE),
        batches=real.get_attr(BATCHES),
        site=real.get_attr(SITE),
    )
    return [None, None, done]


# What the gradient has to know of a lookup; TensorFlow ignores it.
LEARNING_RATE, BATCHES, SITE = "_ipu_learning_rate", "_ipu_batches", "_ipu_site"


SGD, ACCUMULATED_SGD = "SGD", "SGD+GA"

# By name, which is all that a specification gets. The latest of a name counts.
_embeddings: dict[str, weakref.ref[HostEmbedding]] = {}


def _named(name: str) -> HostEmbedding:
    """Returns the embedding of a name; raises `KeyError` if there is none."""
    embedding = _embeddings[name]()
    if embedding is None:
        raise KeyError(name)
    return embedding


class HostEmbeddingOptimizerSpec:
    """Stochastic gradient descent on the rows that were looked up: each becomes `row - learning_rate * gradient`.

    The host does it, since the table is there, so the gradients go to no optimizer.
    """

    def __init__(self, learning_rate: float, optimizer_name: str | None = None) -> None:
        """Describes an optimizer: with the learning rate 0, the embedding is not trained.

        `optimizer_name` is "SGD", the default, or "SGD+GA", which `HostEmbeddingSGDGAOptimizerSpec` sets.

        Raises:
          TypeError: `learning_rate` is no number.
          ValueError: It is below 0, or there is no optimizer of the name.
        """
        faults = Faults()
        if not is_number(learning_rate):
            faults.add(TypeError, f"`learning_rate` must be a number, but is {learning_rate!r}")
        elif learning_rate < 0:
            faults.add(ValueError, f"`learning_rate={learning_rate}` must be 0 or more")
        if optimizer_name not in (None, SGD, ACCUMULATED_SGD):
            faults.add(ValueError, f"`optimizer_name` must be 'SGD' or 'SGD+GA', but is {optimizer_name!r}")
        faults.raise_any()
        self._learning_rate = learning_rate
        self._optimizer_name = optimizer_name or SGD

    def get_learning_rate(self) -> float:
        """Returns the learning rate."""
        return self._learning_rate

    def create_lookup_instruction(
        self,
        embedding_tensor: tf.Tensor | tf.Variable,
        indices: tf.Tensor,
        slot_vars: Sequence[tf.Tensor],
        partition_strategy: str,
        name: str,
    ) -> tf.Tensor:
        """Looks rows [n, width] up in the program that is being traced, by numbers [n]; `HostEmbedding.lookup` calls it."""
        del embedding_tensor, slot_vars, partition_strategy
        return _named(name).rows(indices, self._learning_rate, self._batches())

    def create_register_instruction(
        self, embedding_tensor: tf.Tensor | tf.Variable, slot_vars: Sequence[tf.Tensor], name: str
    ) -> tf.Operation | None:
        """Opens the table for programs, in a graph by the operation returned; `HostEmbedding.register` calls it."""
        del embedding_tensor, slot_vars
        return _named(name).open()

    def create_deregister_instruction(
        self, embedding_tensor: tf.Tensor | tf.Variable, slot_vars: Sequence[tf.Tensor], name: str
    ) -> tf.Operation | None:
        """Updates the embedding's tensor from the table; the context of `register` calls it at its end."""
        del embedding_tensor, slot_vars
        return _named(name).close()

    def create_slot_variables(self, embedding_tensor: tf.Tensor | tf.Variable, name: str) -> list[tf.Tensor]:
        """Returns an empty list: the optimizer keeps nothing beside the table."""
        del embedding_tensor, name
        return []

    def _batches(self) -> int:
        return 1


class HostEmbeddingSGDGAOptimizerSpec(HostEmbeddingOptimizerSpec):
    """Stochastic gradient descent with the summed gradients of several mini-batches.

    The host sums them up by row, for each replica apart. Lookups see the rows of before until they are applied.
    """

    def __init__(self, learning_rate: float, accumulation_factor: int) -> None:
        """Describes an optimizer by its learning rate and by how many mini-batches make an update, 1 or more.

        Raises:
          TypeError: `accumulation_factor` is no int; see the class above too.
          ValueError: It is below 1.
        """
        check_int("accumulation_factor", accumulation_factor, 1)
        super().__init__(learning_rate, ACCUMULATED_SGD if accumulation_factor > 1 else SGD)
        self._accumulation_factor = accumulation_factor

    def get_accumulation_factor(self) -> int:
        """Returns how many mini-batches make an update."""
        return self._accumulation_factor

    def _batches(self) -> int:
        return self._accumulation_factor


_STRATEGIES = ("TOKEN", "ENCODING")
_HOST = "/device:CPU:0"
# How often the program of a graph has used each embedding.
_SITES = "_ipu_embedding_sites"


class HostEmbedding:
    """A table of rows in the host's memory, in which programs look rows up, and which training changes in place.

    While the block `with embedding.register():` lasts, programs use the table, and behind it the embedding's tensor holds
    the same. Where the gradient of `trainable_variables` is asked for, the rows that were looked up are updated.
    """

    def __init__(
        self,
        name: str,
        embedding_tensor: tf.Tensor | tf.Variable,
        partition_strategy: str = "TOKEN",
        optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    ) -> None:
        """Makes an embedding of a tensor.

        Args:
          name: The embedding's name, which no other in use has.
          embedding_tensor: The rows, [rows, width], float16 or float32. A variable has the trained ones in the end.
          partition_strategy: How a machine with remote buffers divides the table among replicas: by rows, "TOKEN", or by
            columns, "ENCODING". The numbers are the same.
          optimizer_spec: How the rows are trained; None for not at all.

        Raises:
          ValueError: `embedding_tensor` is no tensor of two dimensions and such a type, `optimizer_spec` no
            `HostEmbeddingOptimizerSpec`, or there is no such strategy.
        """
        faults = Faults()
        _check_options(faults, partition_strategy, optimizer_spec)
        if not isinstance(embedding_tensor, tf.Variable) and not tf.is_tensor(embedding_tensor):
            faults.add(ValueError, f"`embedding_tensor` must be a tensor, but is {embedding_tensor!r}")
        else:
            _check_rows(faults, "embedding_tensor", embedding_tensor.shape, embedding_tensor.dtype)
        faults.raise_any()
        rows, width = map(int, np.array(embedding_tensor.shape))
        table = HostTable(rows, width, tf.as_dtype(embedding_tensor.dtype))
        self._begin(name, partition_strategy, optimizer_spec, table)
        self._set_tensor(embedding_tensor)

    def _begin(
        self, name: str, strategy: str, optimizer_spec: HostEmbeddingOptimizerSpec | None, table: HostTable
    ) -> None:
        self._name = name
        self._partition_strategy = strategy
        self._optimizer_spec = optimizer_spec or HostEmbeddingOptimizerSpec(0)
        self._memory = table
        self._trained: dict[str, tf.Variable] = {}
        _embeddings[name] = weakref.ref(self)

    def _set_tensor(self, tensor: tf.Tensor | tf.Variable) -> None:
        self._tensor = tensor
        self._slot_variables = self._optimizer_spec.create_slot_variables(tensor, self._name)

    @property
    def table(self) -> np.ndarray:
        """Returns the rows in the memory that programs use, [rows, width]; programs see what is written to it.

        Before the first `register` of an embedding that was made of a tensor, it holds zeros.
        """
        return self._memory.array

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """Returns the scalar, zero, whose gradient trains the rows; an empty list if they are not trained."""
        return [self._scalar()] if self._optimizer_spec.get_learning_rate() else []

    def get_embedding_tensor(self) -> tf.Tensor | tf.Variable:
        """Returns the embedding's tensor on the host: a checkpoint saves it, and `register` takes the rows from it."""
        return self._tensor

    def register(self, session: tf.compat.v1.Session | None = None) -> AbstractContextManager[HostEmbedding]:
        """Creates a context in which programs use the embedding; those of a session, which is None in eager execution.

        Raises:
          ValueError: There is no session, and no eager execution.
        """
        if session is None and not tf.executing_eagerly():
            raise ValueError("`HostEmbedding.register` needs a `session` where TensorFlow does not execute eagerly")
        return self._registered(session)

    @contextlib.contextmanager
    def _registered(self, session: tf.compat.v1.Session | None) -> Iterator[HostEmbedding]:
        def act(instruction: Callable[..., tf.Operation | None]) -> None:
            if session is None:
                instruction(self._tensor, self._slot_variables, self._name)
                return
            with session.graph.as_default(), tf.device(_HOST):
                session.run(instruction(self._tensor, self._slot_variables, self._name))

        act(self._optimizer_spec.create_register_instruction)
        try:
            yield self
        finally:
            act(self._optimizer_spec.create_deregister_instruction)

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("`HostEmbedding.__call__` is gone: use `with embedding.register(session):`")

    def lookup(self, indices: TensorLike, clip_indices: bool = True) -> tf.Tensor:
        """Looks rows `[*indices.shape, width]` up in the program that is being traced, by integers of static shape.

        With `clip_indices`, numbers below 0 or beyond the last row are taken for the nearest one. Else they fail the run.

        Raises:
          RuntimeError: It is not called in a program.
          TypeError: `indices` has no integers, or `clip_indices` is no bool.
          ValueError: The shape of `indices` is not known.
        """
        check_bool("clip_indices", clip_indices)
        numbers = tf.convert_to_tensor(indices)
        if not numbers.dtype.is_integer:
            raise TypeError(f"`indices` must have integers, but is {numbers.dtype.name}")
        if not numbers.shape.is_fully_defined():
            raise ValueError(f"`indices` must have a static shape, but has {numbers.shape}; use `tf.ensure_shape`")
        rows, width = self.table.shape
        if clip_indices:
            # Not by another type: a number that it cannot hold must not become another row's.
            wide = tf.cast(numbers, tf.int64) if numbers.dtype.size < 4 else numbers
            numbers = tf.clip_by_value(wide, 0, tf.constant(rows - 1, wide.dtype))
        flat = tf.reshape(tf.cast(numbers, tf.int32), [-1])
        result = self._optimizer_spec.create_lookup_instruction(
            self._tensor, flat, self._slot_variables, self._partition_strategy, self._name
        )
        return tf.reshape(result, [*numbers.shape, width])

    # What specifications call.

    def rows(self, indices: tf.Tensor, learning_rate: float, batches: int) -> tf.Tensor:
        """Adds a lookup of rows [n, width], by int32 numbers [n], to the program that is being traced."""
        device = sites.device_of_program("HostEmbedding.lookup")
        state = programs.in_function(self._memory.state(device))
        trained = self._scalar().read_value() if learning_rate else tf.zeros([], self.table.dtype)
        width = self.table.shape[1]
        result = ops.ipu_embedding_lookup(state, indices, trained, width=width, advance=not programs.in_condition())
        value = tf.compat.v1.AttrValue
        graphs.set_attribute(result.op, LEARNING_RATE, value(f=learning_rate))
        graphs.set_attribute(result.op, BATCHES, value(i=batches))
        graphs.set_attribute(result.op, SITE, value(i=self._site()))
        return result

    def _site(self) -> int:
        """Returns a number of the lookup: unique in the program, and the same in each of its traces."""
        *_, outermost = graphs.being_traced()
        used: dict[HostEmbedding, int] = getattr(outermost, _SITES, {})
        used[self] = used.get(self, -1) + 1
        setattr(outermost, _SITES, used)
        return used[self]

    def open(self) -> tf.Operation | None:
        """Copies the tensor to the table, if it is elsewhere, and opens the table; in a graph by the operation returned."""

        def copied(value: np.ndarray) -> np.int32:
            self.table[...] = value
            self._memory.open(True)
            return np.int32(0)

        if not tf.executing_eagerly():
            return tf.numpy_function(copied, [_value_of(self._tensor)], tf.int32).op
        value = _value_of(self._tensor)
        if not self._memory.is_behind(value):
            self.table[...] = value
        self._memory.open(True)
        return None

    def close(self) -> tf.Operation | None:
        """Closes the table, and copies it to the tensor if that is a variable elsewhere; see `open`."""

        def taken() -> np.ndarray:
            self._memory.open(False)
            return self.table

        tensor = self._tensor
        if not tf.executing_eagerly():
            value = tf.numpy_function(taken, [], tensor.dtype)
            value.set_shape(tensor.shape)
            return tf.group(tensor.assign(value) if isinstance(tensor, tf.Variable) else value)
        self._memory.open(False)
        if isinstance(tensor, tf.Variable) and not self._memory.is_behind(tensor.read_value()):
            tensor.assign(self.table)
        return None

    def _scalar(self) -> tf.Variable:
        """Returns the scalar whose gradient trains the rows."""
        dtype = tf.as_dtype(self.table.dtype)
        if not tf.compat.v1.executing_eagerly_outside_functions():
            with tf.compat.v1.variable_scope(self._name, reuse=tf.compat.v1.AUTO_REUSE):
                zero = tf.compat.v1.zeros_initializer()
                return tf.compat.v1.get_variable("__dummy", [], dtype, zero, trainable=True, use_resource=True)
        device = device_of(None) if tf.executing_eagerly() else sites.device_of_program("HostEmbedding.lookup")
        if device not in self._trained:
            with tf.init_scope(), tf.device(device):
                zero = tf.zeros([], dtype)
                self._trained[device] = variables.of_trace(zero, f"{self._name}/trained", trainable=True)
        return self._trained[device]


def create_host_embedding(
    name: str,
    shape: ShapeLike,
    dtype: DTypeLike,
    partition_strategy: str = "TOKEN",
    optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    initializer: Callable[..., Any] | None = None,
) -> HostEmbedding:
    """Makes an embedding with a variable of its own, on the host.

    In eager execution the variable is in the table's memory. Rows that nothing wrote, such as those of zeros, take none:
    so a table may be far larger than memory, with `initializer=tf.zeros_initializer()`.

    Args:
      name: The embedding's name, and the variable's.
      shape: The table's: [rows, width].
      dtype: float16 or float32.
      partition_strategy: "TOKEN" or "ENCODING"; see `HostEmbedding`.
      optimizer_spec: How the rows are trained; None for not at all.
      initializer: Gives the rows their first values, called with `shape` and `dtype`; Glorot's uniform ones if omitted.

    Raises:
      ValueError: An argument is none of those.
    """
    faults = Faults()
    _check_options(faults, partition_strategy, optimizer_spec)
    _check_rows(faults, "shape", tf.TensorShape(shape), dtype)
    faults.raise_any()
    rows, width = map(int, np.array(tf.TensorShape(shape)))
    kind = tf.as_dtype(dtype)
    if not tf.executing_eagerly():
        with tf.device(_HOST):
            variable = tf.compat.v1.get_variable(
                name, [rows, width], kind, initializer, trainable=False, use_resource=True
            )
        return HostEmbedding(name, variable, partition_strategy, optimizer_spec)
    table = HostTable(rows, width, kind)
    if not _gives_zeros(initializer):
        make = initializer or tf.compat.v1.glorot_uniform_initializer()
        with tf.device(_HOST):
            table.array[...] = make([rows, width], dtype=kind)
    embedding = HostEmbedding.__new__(HostEmbedding)
    embedding._begin(name, partition_strategy, optimizer_spec, table)
    with tf.device(_HOST):
        embedding._set_tensor(variables.of_trace(table.tensor(), name))
    return embedding


def _gives_zeros(initializer: object) -> bool:
    kinds = (tf.zeros_initializer, tf.compat.v1.zeros_initializer, tf.keras.initializers.Zeros)
    return initializer in kinds or isinstance(initializer, kinds)


def _value_of(tensor: tf.Tensor | tf.Variable) -> tf.Tensor:
    return tensor.read_value() if isinstance(tensor, tf.Variable) else tensor


def _check_options(faults: Faults, partition_strategy: object, optimizer_spec: object) -> None:
    if partition_strategy not in _STRATEGIES:
        faults.add(ValueError, f"`partition_strategy` must be 'TOKEN' or 'ENCODING', but is {partition_strategy!r}")
    if optimizer_spec is not None and not isinstance(optimizer_spec, HostEmbeddingOptimizerSpec):
        faults.add(
            ValueError,
            f"`optimizer_spec` must be a `HostEmbeddingOptimizerSpec` or None, but is {optimizer_spec!r}",
        )


def _check_rows(faults: Faults, argument: str, shape: tf.TensorShape, dtype: DTypeLike) -> None:
    if shape.rank != 2 or not shape.is_fully_defined() or not shape.num_elements():
        faults.add(ValueError, f"`{argument}` must be [rows, width], of 1 and more each, but is {shape}")
    elif shape.as_list()[0] > tf.int32.max:
        faults.add(ValueError, f"`{argument}` must have at most {tf.int32.max} rows, but is {shape}")
    if tf.as_dtype(dtype) not in (tf.float16, tf.float32):
        faults.add(ValueError, f"the embedding must be float16 or float32, but is {tf.as_dtype(dtype).name}")


def embedding_lookup(
    params: tf.Tensor | tf.Variable,
    ids: TensorLike,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Looks rows of a table up, as `tf.gather` does, if asked for in parts of the table one after the other.

    Args:
      params: The table: one dense tensor or variable, of shape [rows, ...].
      ids: Row numbers, integers of any shape. Others are an error where `tf.gather` notices it, not in compiled programs.
      serialization_factor: In how many parts of equal size the table is used, for less memory at once and more time.
      indices_are_sorted: A promise that `ids` ascend. It makes lookups faster on hardware, and no difference here.
      name: A name for the operation.

    Returns:
      A tensor of the type of `params` and of shape `ids.shape + params.shape[1:]`.

    Raises:
      ValueError: `serialization_factor` is below 1 or does not divide the number of rows, or `params` is a scalar.
      TypeError: It is no whole number, `indices_are_sorted` no bool, `ids` no integers, or `params` not one tensor.
    """
    factor = checked_factor(serialization_factor)
    check_bool("indices_are_sorted", indices_are_sorted)
    if isinstance(params, (list, tuple)):
        raise TypeError(
            f"`params` must be one tensor, but is a {type(params).__name__} of {len(params)}; `tf.concat` its tensors"
        )
    with tf.name_scope(name or "embedding_lookup"):
        ids = tf.convert_to_tensor(ids, name="ids")
        if not ids.dtype.is_integer:
            raise TypeError(f"`ids` must be integers, the numbers of rows of `params`, but are {ids.dtype.name}")
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int32)  # `tf.gather` takes no others.
        if params.shape.rank == 0:
            raise ValueError("`params` must have rows, but is a scalar")
        if factor == 1:
            return tf.gather(params, ids)
        table = tf.convert_to_tensor(params, name="params")
        rows = table.shape[0] if table.shape.rank else None
        if rows is None:
            raise ValueError(f"`params` has shape {table.shape}; to use it in parts, its number of rows must be known")
        if rows % factor:
            raise ValueError(
                f"`serialization_factor={factor}` must divide the number of rows of `params`, which is {rows}"
            )
        return _in_parts(table, ids, factor)


def checked_factor(serialization_factor: SupportsIndex) -> int:
    try:
        factor = operator.index(serialization_factor)
    except TypeError as exc:
        raise TypeError(f"`serialization_factor` must be a whole number, but is `{serialization_factor!r}`") from exc
    if factor < 1:
        raise ValueError(f"`serialization_factor` must be 1 or more, but is `{factor}`")
    return factor


def _in_parts(table: tf.Tensor, ids: tf.Tensor, factor: int) -> tf.Tensor:
    """Asks each part for all ids; rows of the others count as zero."""
    size = known_size(table, 0) // factor
    parts = []
    for part in range(factor):
        local = ids - part * size
        inside = tf.logical_and(local >= 0, local < size)
        rows = tf.gather(table[part * size : (part + 1) * size], tf.clip_by_value(local, 0, size - 1))
        inside = tf.reshape(inside, tf.concat([tf.shape(ids), tf.ones([table.shape.rank - 1], tf.int32)], 0))
        parts.append(tf.where(inside, rows, tf.zeros([], table.dtype)))
    return tf.add_n(parts)
