"""Lookups in embedding tables, which are tensors of the program or tables on the host."""

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


# `mmap.MAP_NORESERVE`, which Python has from 3.13 on.
_NO_RESERVE = 0x4000


class HostTable(NativeObject):
    """A table of zeros. Only rows that are written take memory, so a table may be larger than the memory."""

    def __init__(self, rows: int, width: int, dtype: tf.DType) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        memory = mmap.mmap(-1, rows * width * dtype.size, flags=flags)
        self.array: np.ndarray = np.frombuffer(memory, dtype.as_numpy_dtype).reshape(rows, width)
        address = self.array.ctypes.data
        number = native.ipu_embedding_new(address, rows, width, dtype == tf.float16)
        super().__init__(number, native.ipu_embedding_drop, keep=self.array)

    def tensor(self) -> tf.Tensor:
        """Returns a host tensor that shares the memory of the table, and so shows what programs write."""
        return tf.experimental.dlpack.from_dlpack(self.array.__dlpack__())

    def shares_memory_with(self, tensor: tf.Tensor) -> bool:
        """Returns True if an eager host tensor begins at the same address as the table."""
        memory: Any = tensor  # Its stub lacks the buffer protocol.
        return np.asarray(memoryview(memory)).ctypes.data == self.array.ctypes.data

    def open(self, is_open: bool) -> None:
        """Allows programs to use the table, or forbids it."""
        native.ipu_embedding_open(self.number, is_open)


@tf.RegisterGradient("IpuEmbeddingLookup")
def _gradient(op: tf.Operation, upstream: tf.Tensor | tf.IndexedSlices) -> list[tf.Tensor | None]:
    """Adds the operation that updates the table. Its result, zero, becomes the gradient of the input `trained`."""
    real = op.outputs[0].op  # A `tf.GradientTape` passes a mock operation.
    state, indices, _ = real.inputs
    zero = ops.ipu_embedding_update(
        state,
        indices,
        tf.convert_to_tensor(upstream),
        learning_rate=real.get_attr(LEARNING_RATE),
        batches=real.get_attr(BATCHES),
        site=real.get_attr(SITE),
    )
    return [None, None, zero]


# The attributes of a lookup that its gradient reads. TensorFlow ignores them.
LEARNING_RATE, BATCHES, SITE = "_ipu_learning_rate", "_ipu_batches", "_ipu_site"


SGD, ACCUMULATED_SGD = "SGD", "SGD+GA"

# The latest embedding of each name. The methods of an optimizer spec get the name, not the embedding.
_embeddings: dict[str, weakref.ref[HostEmbedding]] = {}


def _find(name: str) -> HostEmbedding:
    """Returns the embedding `name`; raises `KeyError` if there is none."""
    embedding = _embeddings[name]()
    if embedding is None:
        raise KeyError(name)
    return embedding


class HostEmbeddingOptimizerSpec:
    """Stochastic gradient descent on the rows that were looked up: each becomes `row - learning_rate * gradient`.

    The host updates the rows, because it holds the table. No optimizer gets their gradients.
    """

    def __init__(self, learning_rate: float, optimizer_name: str | None = None) -> None:
        """Describes an optimizer. With the learning rate 0, the embedding is not trained.

        `optimizer_name` is "SGD", the default. The subclass `HostEmbeddingSGDGAOptimizerSpec` passes "SGD+GA".

        Raises:
          TypeError: `learning_rate` is not a number.
          ValueError: `learning_rate` is below 0, or `optimizer_name` has another value.
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
        """Adds a lookup of rows [n, width] by indices [n] to the program; `HostEmbedding.lookup` calls it."""
        del embedding_tensor, slot_vars, partition_strategy
        return _find(name).rows(indices, self._learning_rate, self._batches())

    def create_register_instruction(
        self, embedding_tensor: tf.Tensor | tf.Variable, slot_vars: Sequence[tf.Tensor], name: str
    ) -> tf.Operation | None:
        """Opens the table for programs. In a graph, returns the operation for it. `HostEmbedding.register` calls this."""
        del embedding_tensor, slot_vars
        return _find(name).open()

    def create_deregister_instruction(
        self, embedding_tensor: tf.Tensor | tf.Variable, slot_vars: Sequence[tf.Tensor], name: str
    ) -> tf.Operation | None:
        """Closes the table and copies it to the embedding's variable; the end of `HostEmbedding.register` calls it."""
        del embedding_tensor, slot_vars
        return _find(name).close()

    def create_slot_variables(self, embedding_tensor: tf.Tensor | tf.Variable, name: str) -> list[tf.Tensor]:
        """Returns an empty list: the optimizer has no slots."""
        del embedding_tensor, name
        return []

    def _batches(self) -> int:
        return 1


class HostEmbeddingSGDGAOptimizerSpec(HostEmbeddingOptimizerSpec):
    """Stochastic gradient descent with the summed gradients of several mini-batches.

    The host sums the gradients by row, for each replica separately. Until it applies them, lookups return the old rows.
    """

    def __init__(self, learning_rate: float, accumulation_factor: int) -> None:
        """Describes an optimizer.

        Args:
          learning_rate: As for `HostEmbeddingOptimizerSpec`.
          accumulation_factor: The number of mini-batches whose gradients make an update, 1 or more.

        Raises:
          TypeError: `learning_rate` is not a number, or `accumulation_factor` is not an int.
          ValueError: `learning_rate` is below 0, or `accumulation_factor` below 1.
        """
        check_int("accumulation_factor", accumulation_factor, 1)
        super().__init__(learning_rate, ACCUMULATED_SGD if accumulation_factor > 1 else SGD)
        self._accumulation_factor = accumulation_factor

    def get_accumulation_factor(self) -> int:
        """Returns the number of mini-batches whose gradients make an update."""
        return self._accumulation_factor

    def _batches(self) -> int:
        return self._accumulation_factor


_STRATEGIES = ("TOKEN", "ENCODING")
_HOST = "/device:CPU:0"
# The attribute of a program's graph that has the number of lookups of each embedding.
_SITES = "_ipu_embedding_sites"


class HostEmbedding:
    """A table in the host's memory. Programs look up its rows, and training updates them in place.

    Programs can use the table inside of the block `with embedding.register():`. At its end, the rows are copied to the
    embedding's variable. A program that computes the gradient of `trainable_variables` updates the rows that it looked
    up.
    """

    def __init__(
        self,
        name: str,
        embedding_tensor: tf.Tensor | tf.Variable,
        partition_strategy: str = "TOKEN",
        optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    ) -> None:
        """Creates an embedding from a tensor.

        Args:
          name: The embedding's name, which must be unique among those in use.
          embedding_tensor: The rows, of shape [rows, width], float16 or float32. The trained rows are copied to a
            variable, but not to a tensor.
          partition_strategy: How hardware with remote buffers divides the table among replicas: by rows, "TOKEN", or by
            columns, "ENCODING". The results are the same.
          optimizer_spec: The optimizer of the rows. If it is None, they are not trained.

        Raises:
          ValueError: `embedding_tensor` is not a tensor of that shape and type, `optimizer_spec` is not a
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
        self._initialize(name, partition_strategy, optimizer_spec, table)
        self._set_tensor(embedding_tensor)

    def _initialize(
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
        """The rows, of shape [rows, width], in the memory that programs use: programs see assignments to the array.

        If the embedding was created from a tensor, the rows are zeros until the first `register`.
        """
        return self._memory.array

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """A list with a scalar variable whose gradient updates the rows; an empty list if they are not trained."""
        return [self._scalar()] if self._optimizer_spec.get_learning_rate() else []

    def get_embedding_tensor(self) -> tf.Tensor | tf.Variable:
        """Returns the embedding's tensor or variable, which `register` copies to the table and a checkpoint saves."""
        return self._tensor

    def register(self, session: tf.compat.v1.Session | None = None) -> AbstractContextManager[HostEmbedding]:
        """Returns a context whose programs can use the embedding.

        Args:
          session: The session that runs the programs; None in eager execution.

        Raises:
          ValueError: `session` is None, and TensorFlow does not execute eagerly.
        """
        if session is None and not tf.executing_eagerly():
            raise ValueError("`HostEmbedding.register` needs a `session` if TensorFlow does not execute eagerly")
        return self._registered(session)

    @contextlib.contextmanager
    def _registered(self, session: tf.compat.v1.Session | None) -> Iterator[HostEmbedding]:
        def execute(instruction: Callable[..., tf.Operation | None]) -> None:
            if session is None:
                instruction(self._tensor, self._slot_variables, self._name)
                return
            with session.graph.as_default(), tf.device(_HOST):
                session.run(instruction(self._tensor, self._slot_variables, self._name))

        execute(self._optimizer_spec.create_register_instruction)
        try:
            yield self
        finally:
            execute(self._optimizer_spec.create_deregister_instruction)

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("`HostEmbedding.__call__` is not supported; use `with embedding.register(session):`")

    def lookup(self, indices: TensorLike, clip_indices: bool = True) -> tf.Tensor:
        """Looks up rows in the program that is being traced, as a tensor of shape `[*indices.shape, width]`.

        Args:
          indices: Integers of static shape.
          clip_indices: Whether an index below 0 or beyond the last row reads the nearest row. Otherwise it ends the run
            with an error.

        Raises:
          RuntimeError: It is not called in a program.
          TypeError: `indices` are not integers, or `clip_indices` is not a bool.
          ValueError: The shape of `indices` is not static.
        """
        check_bool("clip_indices", clip_indices)
        row_indices = tf.convert_to_tensor(indices)
        if not row_indices.dtype.is_integer:
            raise TypeError(f"`indices` must have integers, but is {row_indices.dtype.name}")
        if not row_indices.shape.is_fully_defined():
            raise ValueError(f"`indices` must have a static shape, but has {row_indices.shape}; use `tf.ensure_shape`")
        rows, width = self.table.shape
        if clip_indices:
            # Clips before the cast to int32, which could turn a large index into the index of another row. Small
            # integer types cannot hold the limit.
            wide = tf.cast(row_indices, tf.int64) if row_indices.dtype.size < 4 else row_indices
            row_indices = tf.clip_by_value(wide, 0, tf.constant(rows - 1, wide.dtype))
        flat = tf.reshape(tf.cast(row_indices, tf.int32), [-1])
        result = self._optimizer_spec.create_lookup_instruction(
            self._tensor, flat, self._slot_variables, self._partition_strategy, self._name
        )
        return tf.reshape(result, [*row_indices.shape, width])

    # The methods of optimizer specs call these methods.

    def rows(self, indices: tf.Tensor, learning_rate: float, batches: int) -> tf.Tensor:
        """Adds a lookup of rows [n, width], by int32 indices [n], to the program that is being traced."""
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
        """Returns a number for a lookup of this embedding: unique in the program, and the same in each trace of it."""
        *_, outermost = graphs.being_traced()
        counts: dict[HostEmbedding, int] = getattr(outermost, _SITES, {})
        counts[self] = counts.get(self, -1) + 1
        setattr(outermost, _SITES, counts)
        return counts[self]

    def open(self) -> tf.Operation | None:
        """Copies the tensor to the table, unless they share memory, and opens the table.

        In a graph, returns the operation that does both.
        """

        def copy_and_open(value: np.ndarray) -> np.int32:
            self.table[...] = value
            self._memory.open(True)
            return np.int32(0)

        if not tf.executing_eagerly():
            return tf.numpy_function(copy_and_open, [_value_of(self._tensor)], tf.int32).op
        value = _value_of(self._tensor)
        if not self._memory.shares_memory_with(value):
            self.table[...] = value
        self._memory.open(True)
        return None

    def close(self) -> tf.Operation | None:
        """Closes the table, and copies it to the variable, unless they share memory. The opposite of `open`."""

        def close_and_return() -> np.ndarray:
            self._memory.open(False)
            return self.table

        tensor = self._tensor
        if not tf.executing_eagerly():
            value = tf.numpy_function(close_and_return, [], tensor.dtype)
            value.set_shape(tensor.shape)
            return tf.group(tensor.assign(value) if isinstance(tensor, tf.Variable) else value)
        self._memory.open(False)
        if isinstance(tensor, tf.Variable) and not self._memory.shares_memory_with(tensor.read_value()):
            tensor.assign(self.table)
        return None

    def _scalar(self) -> tf.Variable:
        """Returns the scalar variable whose gradient updates the rows; creates it if there is none. Its value is 0."""
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
    """Creates an embedding and its variable, which is on the host.

    In eager execution, the variable shares the memory of the table. Rows that were never written take no memory. So
    with `initializer=tf.zeros_initializer()`, a table may be far larger than the memory.

    Args:
      name: The name of the embedding and of the variable.
      shape: The shape of the table, [rows, width].
      dtype: float16 or float32.
      partition_strategy: "TOKEN" or "ENCODING"; see `HostEmbedding`.
      optimizer_spec: The optimizer of the rows. If it is None, they are not trained.
      initializer: A function of `shape` and `dtype` that returns the initial rows; Glorot's uniform initializer if
        omitted.

    Raises:
      ValueError: `shape`, `dtype`, `partition_strategy` or `optimizer_spec` is not supported.
    """
    faults = Faults()
    _check_options(faults, partition_strategy, optimizer_spec)
    _check_rows(faults, "shape", tf.TensorShape(shape), dtype)
    faults.raise_any()
    rows, width = map(int, np.array(tf.TensorShape(shape)))
    row_type = tf.as_dtype(dtype)
    if not tf.executing_eagerly():
        with tf.device(_HOST):
            variable = tf.compat.v1.get_variable(
                name, [rows, width], row_type, initializer, trainable=False, use_resource=True
            )
        return HostEmbedding(name, variable, partition_strategy, optimizer_spec)
    table = HostTable(rows, width, row_type)
    if not _returns_zeros(initializer):
        initialize = initializer or tf.compat.v1.glorot_uniform_initializer()
        with tf.device(_HOST):
            table.array[...] = initialize([rows, width], dtype=row_type)
    embedding = HostEmbedding.__new__(HostEmbedding)
    embedding._initialize(name, partition_strategy, optimizer_spec, table)
    with tf.device(_HOST):
        embedding._set_tensor(variables.of_trace(table.tensor(), name))
    return embedding


def _returns_zeros(initializer: object) -> bool:
    classes = (tf.zeros_initializer, tf.compat.v1.zeros_initializer, tf.keras.initializers.Zeros)
    return initializer in classes or isinstance(initializer, classes)


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
        faults.add(ValueError, f"`{argument}` must be [rows, width], both 1 or more, but is {shape}")
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
    """Looks up rows of a table, as `tf.gather` does, or in several parts of the table, one after another.

    Args:
      params: The table: one dense tensor or variable, of shape [rows, ...].
      ids: Row indices, integers of any shape. An index without a row is an error as in `tf.gather`, but not in compiled
        programs.
      serialization_factor: The number of parts of equal size. More parts need less memory at once, and more time.
      indices_are_sorted: A promise that `ids` ascend. It makes lookups faster on hardware, and has no effect here.
      name: A name for the operation.

    Returns:
      A tensor of the type of `params` and of shape `ids.shape + params.shape[1:]`.

    Raises:
      ValueError: `serialization_factor` is below 1 or does not divide the number of rows, or `params` is a scalar.
      TypeError: `serialization_factor` is not an integer, `indices_are_sorted` is not a bool, `ids` are not integers,
        or `params` is not one tensor.
    """
    factor = checked_factor(serialization_factor)
    check_bool("indices_are_sorted", indices_are_sorted)
    if isinstance(params, (list, tuple)):
        raise TypeError(
            f"`params` must be one tensor, but is a {type(params).__name__} of {len(params)}; join them by `tf.concat`"
        )
    with tf.name_scope(name or "embedding_lookup"):
        ids = tf.convert_to_tensor(ids, name="ids")
        if not ids.dtype.is_integer:
            raise TypeError(f"`ids` must be integers, the indices of rows of `params`, but are {ids.dtype.name}")
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int32)  # `tf.gather` supports only these types.
        if params.shape.rank == 0:
            raise ValueError("`params` must have rows, but is a scalar")
        if factor == 1:
            return tf.gather(params, ids)
        table = tf.convert_to_tensor(params, name="params")
        rows = table.shape[0] if table.shape.rank else None
        if rows is None:
            raise ValueError(
                f"`params` must have a static number of rows to be used in parts, but has shape {table.shape}"
            )
        if rows % factor:
            raise ValueError(
                f"`serialization_factor={factor}` must divide the number of rows of `params`, which is {rows}"
            )
        return _look_up_in_parts(table, ids, factor)


def checked_factor(serialization_factor: SupportsIndex) -> int:
    try:
        factor = operator.index(serialization_factor)
    except TypeError as exc:
        raise TypeError(f"`serialization_factor` must be a whole number, but is `{serialization_factor!r}`") from exc
    if factor < 1:
        raise ValueError(f"`serialization_factor` must be 1 or more, but is `{factor}`")
    return factor


def _look_up_in_parts(table: tf.Tensor, ids: tf.Tensor, factor: int) -> tf.Tensor:
    """Looks up all ids in each part, with zeros for rows of other parts, and sums the results."""
    size = known_size(table, 0) // factor
    parts = []
    for part in range(factor):
        local = ids - part * size
        is_inside = tf.logical_and(local >= 0, local < size)
        rows = tf.gather(table[part * size : (part + 1) * size], tf.clip_by_value(local, 0, size - 1))
        is_inside = tf.reshape(is_inside, tf.concat([tf.shape(ids), tf.ones([table.shape.rank - 1], tf.int32)], 0))
        parts.append(tf.where(is_inside, rows, tf.zeros([], table.dtype)))
    return tf.add_n(parts)
