"""What recurrent layers of the IPU add to Keras's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._checks import note_bool
from tensorflow_ipu._faults import Faults

if TYPE_CHECKING:
    from tensorflow_ipu._types import DTypeLike, Initializer, Nested, Shape
    from tensorflow_ipu.keras.layers.rnn import PopnnGRU, PopnnLSTM

_PARTIALS = (tf.float16, tf.float32)


class Popnn:
    """What both layers add to Keras's own: the order of dimensions, seeds, and options for hardware."""

    def _record(
        self,
        partials_dtype: DTypeLike,
        seed: int | None,
        dropout_seed: int | None,
        time_major: bool,
        options: Mapping[str, Any] | None,
        options_bwd: Mapping[str, Any] | None,
    ) -> None:
        self.partials_dtype = tf.as_dtype(partials_dtype)
        self.seed = seed
        self.dropout_seed = dropout_seed
        self.time_major = time_major
        self.options = None if options is None else dict(options)
        self.options_bwd = None if options_bwd is None else dict(options_bwd)

    def _recorded(self) -> dict[str, Any]:
        return {
            "partials_dtype": self.partials_dtype.name,
            "seed": self.seed,
            "dropout_seed": self.dropout_seed,
            "time_major": self.time_major,
            "options": self.options,
            "options_bwd": self.options_bwd,
            "implementation": 2,
        }

    def _batch_major(self, shape: Shape) -> tuple[int | None, ...]:
        """The shape of inputs as Keras has it."""
        batch, time, *rest = shape
        return (time, batch, *rest) if self.time_major else (batch, time, *rest)

    def _swapped(self, tensor: Any) -> Any:
        """A tensor with its first two dimensions swapped, where time comes first."""
        if tensor is None or not self.time_major:
            return tensor
        return tf.transpose(tensor, [1, 0, *range(2, len(tensor.shape))])


def check(
    layer: object,
    kind: str,
    fixed: Mapping[str, tuple[object, object]],
    partials_dtype: DTypeLike,
    time_major: object,
    **options: object,
) -> None:
    """Refuses what the layer does not have, all at once."""
    faults = Faults()
    for name, (value, only) in fixed.items():
        if value != only:
            faults.add(
                ValueError,
                f"`{type(layer).__name__}` has no `{name}={value!r}`, only `{name}={only!r}`; `keras.layers.{kind}` runs"
                " on the IPU too, and has it",
            )
    if tf.as_dtype(partials_dtype) not in _PARTIALS:
        faults.add(ValueError, f"`partials_dtype` must be float16 or float32, but is `{partials_dtype!r}`")
    note_bool("time_major", time_major, faults)
    for name, value in options.items():
        if value is not None and not isinstance(value, Mapping):
            faults.add(TypeError, f"`{name}` must be a dict, but is `{value!r}`")
    faults.raise_any()


def seeded(initializer: Initializer, seed: int | None) -> Any:
    """The initializer, with this seed if it is random and has none of its own."""
    found: Any = keras.initializers.get(initializer)
    if seed is None or not isinstance(initializer, str) or "seed" not in found.get_config():
        return found
    return type(found).from_config({**found.get_config(), "seed": seed})


def call(
    layer: PopnnLSTM | PopnnGRU,
    call: Nested,
    inputs: tf.Tensor,
    initial_state: Nested,
    mask: tf.Tensor | None,
    training: bool | None,
) -> Nested:
    """Calls Keras's layer, with time first where the layer has it so."""
    if inputs.shape.rank != 3:
        raise ValueError(f"`inputs` must have three dimensions, but has shape {inputs.shape}")
    with replicas.summed_in(layer.partials_dtype, layer.compute_dtype):
        results = call(
            layer._swapped(inputs), initial_state=initial_state, mask=layer._swapped(mask), training=bool(training)
        )
    if not layer.time_major or not layer.return_sequences:
        return results
    if not layer.return_state:
        return layer._swapped(results)
    outputs, *states = results
    return layer._swapped(outputs), *states


def output_shape(layer: PopnnLSTM | PopnnGRU, shape: Nested) -> Nested:
    """The shape of the outputs, of what Keras's layer says."""
    if not layer.time_major or not layer.return_sequences:
        return shape
    if not layer.return_state:
        return layer._batch_major(shape)
    outputs, *states = shape
    return layer._batch_major(outputs), *states
