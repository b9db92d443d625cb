"""Layers that select activations to be stored for the backward pass or to be recomputed in it."""

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
    """Returns its inputs, and marks them as activations to be stored if their pipeline stage is recomputed.

    It changes no values or gradients. Masks are passed on.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Creates the layer, with the arguments of every Keras layer."""
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs: Nested, **kwargs: Any) -> Nested:
        """Returns the tensor, or the structure of tensors, of `inputs`."""
        del kwargs
        return pipelining.recomputation_checkpoint(inputs)


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class Recompute(keras.layers.Wrapper):
    """Recomputes a layer or a model in the backward pass, so that its activations need not be stored.

    Results, gradients and weights are the same as without the wrapper. Both computations draw the same random values,
    and non-trainable weights, such as moving averages, are updated once.
    """

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any) -> None:
        """Creates the wrapper of a Keras layer or model.

        Raises:
          ValueError: `layer` is not a Keras layer.
        """
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"`layer` must be a Keras layer or model, but is `{layer!r}`")
        super().__init__(layer, **kwargs)
        self.supports_masking = True

    def build(self, input_shape: Shape | None = None) -> None:
        """Builds the layer if its class defines `build`; other layers are built when they are called."""
        if not self.layer.built and type(self.layer).build is not keras.layers.Layer.build:
            self.layer.build(input_shape)
        self.built = True

    def call(self, inputs: Nested, training: bool | None = None, mask: Nested = None) -> Nested:
        """Returns the results of the layer for `inputs`."""
        if not internals.computes_again():
            return self.layer(inputs, **_mask_for(self.layer, mask))
        if not self.layer.built:  # A layer without `build` creates its weights in a call, here in a symbolic one.
            symbols = tf.nest.map_structure(lambda tensor: internals.symbol(tensor.shape, tensor.dtype), inputs)
            internals.called_with_symbols(self.layer, symbols, training=bool(training))
        call = _Call(self.layer, inputs, training, mask)
        # The backward pass may be traced after the user's step. So the call keeps the AutoGraph settings of this step.
        flat = _recomputed(autograph.user_code(call))(*call.arguments())
        outputs, masks, values, losses = call.unflatten(flat)
        internals.put_masks(outputs, masks)
        for variable, value in zip(self.layer.non_trainable_variables, values, strict=True):
            variable.assign(tf.stop_gradient(value))
        for loss in losses:
            self.add_loss(loss)
        return outputs

    def compute_output_spec(self, inputs: Nested, training: bool | None = None, mask: Nested = None) -> Nested:
        """Returns the shapes and types of the results of the layer."""
        del training, mask
        return self.layer.compute_output_spec(inputs)

    def compute_mask(self, inputs: Nested, previous_mask: Nested = None) -> Nested:
        """Returns the masks of the results of the layer."""
        return internals.mask_after(self.layer, inputs, previous_mask)


class _Call:
    """A call of a layer as a pure function of tensors, so that it can be computed twice.

    The arguments are the inputs and the values of all variables. The results are the outputs, their masks, the new
    values of the non-trainable variables, and the losses; all are flat lists of tensors.
    """

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
            *(tf.convert_to_tensor(internals.uncast(variable)) for variable in self._variables),
        ]

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        count = len(tensors) - len(self._variables)
        mapping = list(zip(self._variables, tensors[count:], strict=True))
        with internals.stateless(self._layer, mapping, self._seeds) as scope:
            inputs = tf.nest.pack_sequence_as(self._inputs, tensors[:count])
            outputs = _TrainingScope(self._layer, self._mask)(inputs, training=self._training)
            masks = internals.masks_of(outputs)
        values = [tf.identity(value) for value in map(scope.get_current_value, self._layer.non_trainable_variables)]
        self._structure = (outputs, masks, values, list(scope.losses))
        return [tf.identity(tensor) for tensor in tf.nest.flatten(self._structure)]

    def unflatten(self, tensors: Iterable[tf.Tensor]) -> Nested:
        return tf.nest.pack_sequence_as(self._structure, list(tensors))


class _TrainingScope(keras.layers.Layer):
    """Calls a layer such that the layers in it get `training` from this call.

    Keras passes `training` from the outermost layer that is being called to the layers in it. In the backward pass no
    layer is being called, so this one takes the place of the outermost layer.
    """

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
        """Returns None, so that Keras keeps the masks that the layer has stored on its outputs."""


def _mask_for(layer: keras.layers.Layer, mask: Nested) -> dict[str, Nested]:
    takes_mask = mask is not None and "mask" in inspect.signature(layer.call).parameters
    return {"mask": mask} if takes_mask else {}


def _recomputed(function: Callable[..., list[tf.Tensor]]) -> Callable[..., list[tf.Tensor]]:
    """Returns `function` with a gradient that calls it again instead of storing its intermediate results.

    The forward pass stores only the arguments. The backward pass calls the function again under a tape, which then
    computes the gradients. The cost is a second forward computation. XLA would merge two equal computations, and thus
    store the intermediate results. So `_dependent_on` first makes the arguments depend on the upstream gradients.
    """

    @tf.custom_gradient
    def call(*tensors: tf.Tensor) -> Nested:
        def gradient(*upstream: tf.Tensor) -> list[Gradient | None]:
            arguments = _dependent_on(upstream, tensors)
            watched = [tensor for tensor in arguments if tensor.dtype.is_floating]
            with tf.GradientTape() as tape:
                tape.watch(watched)
                results = function(*arguments)
            pairs = [pair for pair in zip(results, upstream, strict=True) if pair[0].dtype.is_floating]
            gradients = iter(
                tape.gradient([result for result, _ in pairs], watched, output_gradients=[flow for _, flow in pairs])
            )
            return [next(gradients) if tensor.dtype.is_floating else None for tensor in arguments]

        return function(*tensors), gradient

    return call


def _dependent_on(upstream: Sequence[tf.Tensor | None], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the same values, computed such that they depend on an upstream gradient: a zero made from it is added."""
    flow = next(tensor for tensor in upstream if tensor is not None and tensor.dtype.is_floating)
    if tf.executing_eagerly():
        return list(tensors)
    first = tf.reduce_max(tf.reshape(flow, [-1])[:1])
    # XLA cannot simplify this to 0, because the result is NaN for NaN. Gradients are then NaN anyway.
    zero = tf.where(tf.math.is_nan(first), first, 0)
    return [tensor + tf.cast(zero, tensor.dtype) if tensor.dtype.is_floating else tensor for tensor in tensors]
