"""Layers that say which activations are kept for the backward pass and which are computed again."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import pipelining
from tensorflow_ipu._tensorflow import autograph
from tensorflow_ipu.keras._keras import internals, keras

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tensorflow_ipu._base.types import Gradient, Nested, Shape

__all__ = ["RecomputationCheckpoint", "Recompute"]


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class RecomputationCheckpoint(keras.layers.Layer):
    """Returns its inputs, and marks them as activations to be kept where a pipeline stage is recomputed.

    Numbers and gradients are what they are without it. Masks pass.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Creates the layer, with the arguments of every Keras layer."""
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs: Nested, **kwargs: Any) -> Nested:
        """Returns the tensor, or the structure of tensors."""
        del kwargs
        return pipelining.recomputation_checkpoint(inputs)


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class Recompute(keras.layers.Wrapper):
    """Computes a layer, or a model, again in the backward pass, so that its activations need not be kept.

    Numbers, gradients and weights are those of the layer alone. What it draws by seeds it draws once, for both passes, and
    what it counts or averages, it updates once.
    """

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any) -> None:
        """Creates the wrapper of a Keras layer or model.

        Raises:
          ValueError: `layer` is none.
        """
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"`layer` must be a Keras layer or model, but is `{layer!r}`")
        super().__init__(layer, **kwargs)
        self.supports_masking = True

    def build(self, input_shape: Shape | None = None) -> None:
        """Makes the weights of the layer, where it does so by a method of its own."""
        if not self.layer.built and type(self.layer).build is not keras.layers.Layer.build:
            self.layer.build(input_shape)
        self.built = True

    def call(self, inputs: Nested, training: bool | None = None, mask: Nested = None) -> Nested:
        """Computes the layer. What it returns is what the layer returns."""
        if not internals.computes_again():
            return self.layer(inputs, **_mask_for(self.layer, mask))
        if not self.layer.built:  # It makes its weights when it is called, which a symbolic call does too.
            symbols = tf.nest.map_structure(lambda each: internals.symbol(each.shape, each.dtype), inputs)
            internals.called_with_symbols(self.layer, symbols, training=bool(training))
        call = _Call(self.layer, inputs, training, mask)
        # The backward pass may be traced outside of the user's step, and AutoGraph then be another.
        flat = _recomputed(autograph.user_code(call))(*call.arguments())
        outputs, masks, states, losses = call.unflatten(flat)
        internals.put_masks(outputs, masks)
        for variable, state in zip(self.layer.non_trainable_variables, states, strict=True):
            variable.assign(tf.stop_gradient(state))
        for loss in losses:
            self.add_loss(loss)
        return outputs

    def compute_output_spec(self, inputs: Nested, training: bool | None = None, mask: Nested = None) -> Nested:
        """The shapes and types of what the layer returns."""
        del training, mask
        return self.layer.compute_output_spec(inputs)

    def compute_mask(self, inputs: Nested, previous_mask: Nested = None) -> Nested:
        """The masks of what the layer returns."""
        return internals.mask_after(self.layer, inputs, previous_mask)


class _Call:
    """A call of a layer as a pure function of tensors: inputs, weights and states to outputs, states and losses."""

    def __init__(self, layer: keras.layers.Layer, inputs: Nested, training: bool | None, mask: Nested) -> None:
        self._layer = layer
        self._inputs = inputs
        self._training = training
        self._mask = mask
        self._variables = layer.trainable_variables + layer.non_trainable_variables
        self._structure: Nested = None
        self._seeds: list[tf.Tensor] = []

    def arguments(self) -> list[tf.Tensor]:
        return [
            *tf.nest.flatten(self._inputs),
            *(tf.convert_to_tensor(internals.uncast(each)) for each in self._variables),
        ]

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        count = len(tensors) - len(self._variables)
        mapping = list(zip(self._variables, tensors[count:], strict=True))
        with internals.stateless(self._layer, mapping, self._seeds) as scope:
            inputs = tf.nest.pack_sequence_as(self._inputs, tensors[:count])
            outputs = _Body(self._layer, self._mask)(inputs, training=self._training)
            masks = internals.masks_of(outputs)
        states = [tf.identity(value) for value in map(scope.get_current_value, self._layer.non_trainable_variables)]
        self._structure = (outputs, masks, states, list(scope.losses))
        return [tf.identity(tensor) for tensor in tf.nest.flatten(self._structure)]

    def unflatten(self, tensors: Iterable[tf.Tensor]) -> Nested:
        return tf.nest.pack_sequence_as(self._structure, list(tensors))


class _Body(keras.layers.Layer):
    """Has all layers below know whether they train, in the backward pass too, when no other layer is being called."""

    def __init__(self, layer: keras.layers.Layer, mask: Nested) -> None:
        super().__init__(name=f"{layer.name}_body", autocast=False)
        self._inner = layer
        self.supports_masking = True
        self._options = _mask_for(layer, mask)
        self.built = True

    def call(self, inputs: Nested, training: bool | None = None) -> Nested:
        del training
        return self._inner(inputs, **self._options)

    def compute_mask(self, inputs: Nested, previous_mask: Nested = None) -> None:
        """Leaves the masks of the layer below as they are."""


def _mask_for(layer: keras.layers.Layer, mask: Nested) -> dict[str, Nested]:
    takes_mask = mask is not None and "mask" in inspect.signature(layer.call).parameters
    return {"mask": mask} if takes_mask else {}


def _recomputed(function: Callable[..., list[tf.Tensor]]) -> Callable[..., list[tf.Tensor]]:
    """The function, with a gradient that computes it again."""

    @tf.custom_gradient
    def call(*tensors: tf.Tensor) -> Nested:
        def gradient(*upstream: tf.Tensor) -> list[Gradient | None]:
            again = _after(upstream, tensors)
            watched = [tensor for tensor in again if tensor.dtype.is_floating]
            with tf.GradientTape() as tape:
                tape.watch(watched)
                results = function(*again)
            pairs = [pair for pair in zip(results, upstream, strict=True) if pair[0].dtype.is_floating]
            found = iter(
                tape.gradient([result for result, _ in pairs], watched, output_gradients=[flow for _, flow in pairs])
            )
            return [next(found) if tensor.dtype.is_floating else None for tensor in again]

        return function(*tensors), gradient

    return call


def _after(upstream: Sequence[tf.Tensor | None], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors, by way of the upstream gradients, so that XLA does not take the first computation's results."""
    flow = next(tensor for tensor in upstream if tensor is not None and tensor.dtype.is_floating)
    if tf.executing_eagerly():
        return list(tensors)
    first = tf.reduce_max(tf.reshape(flow, [-1])[:1])
    nothing = tf.where(tf.math.is_nan(first), first, 0)  # Where there is a NaN, gradients have it anyway.
    return [tensor + tf.cast(nothing, tensor.dtype) if tensor.dtype.is_floating else tensor for tensor in tensors]
