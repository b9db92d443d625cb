"""Replacements for the names of `tensorflow_addons` that programs for IPUs use. That package is no longer maintained."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.tensors import name_of
from tensorflow_ipu._base.types import ShapeLike, TensorLike

keras: Any = tf.keras
_kinds: Any = keras.optimizers.legacy if environment.uses_keras_2() else keras.optimizers


class DecoupledWeightDecayExtension:
    """A mixin for optimizers of Keras that multiplies each variable by `1 - weight_decay` before its update.

    `weight_decay` is a number, a schedule of Keras, or a function without arguments. Variables whose names match a
    regular expression in `exclude_from_weight_decay` do not decay.
    """

    def __init__(
        self,
        weight_decay: float | Callable[..., float],
        *args: Any,
        exclude_from_weight_decay: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._decay = weight_decay
        self._exclude = list(exclude_from_weight_decay or ())
        self._decaying: set[str] | None = None

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], *args: Any, decay_var_list: Sequence[Any] | None = None, **kwargs: Any
    ) -> Any:
        """Applies the gradients. Only the variables of `decay_var_list` decay, or all variables if it is None."""
        self._decaying = None if decay_var_list is None else {name_of(variable) for variable in decay_var_list}
        return super().apply_gradients(grads_and_vars, *args, **kwargs)  # type: ignore[misc]

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()  # type: ignore[misc]
        return {**config, "weight_decay": self._decay, "exclude_from_weight_decay": self._exclude}

    # Keras 2 updates a variable with the first two methods, and Keras 3 with the third one.
    def _resource_apply_dense(self, grad: Any, var: Any, *args: Any, **kwargs: Any) -> Any:
        with tf.control_dependencies(self._decayed(var)):
            return super()._resource_apply_dense(grad, var, *args, **kwargs)  # type: ignore[misc]

    def _resource_apply_sparse(self, grad: Any, var: Any, *args: Any, **kwargs: Any) -> Any:
        with tf.control_dependencies(self._decayed(var)):
            return super()._resource_apply_sparse(grad, var, *args, **kwargs)  # type: ignore[misc]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        self._decayed(variable)
        return super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]

    def _decayed(self, variable: Any) -> list[Any]:
        name = name_of(variable)
        if any(re.search(pattern, name) for pattern in self._exclude):
            return []
        if self._decaying is not None and name not in self._decaying:
            return []
        decay = self._decay
        if isinstance(decay, keras.optimizers.schedules.LearningRateSchedule):
            decay = decay(self.iterations)  # type: ignore[attr-defined]
        elif callable(decay):
            decay = decay()
        value = tf.convert_to_tensor(variable)
        assignment = variable.assign(value - tf.cast(decay, value.dtype) * value)
        return [] if assignment is None else [assignment]


def extend_with_decoupled_weight_decay(base_optimizer: type) -> type:
    """Returns a subclass of `base_optimizer` with weight decay, whose first argument is `weight_decay`."""

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):  # type: ignore[misc]
        """An optimizer with decoupled weight decay."""

    return OptimizerWithDecoupledWeightDecay


class AdamW(DecoupledWeightDecayExtension, _kinds.Adam):
    """Adam with decoupled weight decay."""

    def __init__(
        self, weight_decay: float | Callable[..., float], *args: Any, name: str = "AdamW", **kwargs: Any
    ) -> None:
        super().__init__(weight_decay, *args, name=name, **kwargs)


class SGDW(DecoupledWeightDecayExtension, _kinds.SGD):
    """Gradient descent with decoupled weight decay."""

    def __init__(
        self, weight_decay: float | Callable[..., float], *args: Any, name: str = "SGDW", **kwargs: Any
    ) -> None:
        super().__init__(weight_decay, *args, name=name, **kwargs)


class F1Score(keras.metrics.F1Score):
    """The F1 score of Keras with the argument `num_classes`, which Keras itself infers from the first batch."""

    def __init__(
        self,
        num_classes: int,
        average: str | None = None,
        threshold: float | None = None,
        name: str = "f1_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(average=average, threshold=threshold, name=name, dtype=dtype)
        self.num_classes = num_classes

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> object:
        """Adds a batch of labels and predictions of any dtype."""
        y_true, y_pred = (tf.cast(values, self.dtype) for values in (y_true, y_pred))
        return super().update_state(y_true, y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes}


class MatthewsCorrelationCoefficient(keras.metrics.Metric):
    """The Matthews correlation of labels and predictions, both of shape `(batch, num_classes)`."""

    def __init__(self, num_classes: int, name: str = "MatthewsCorrelationCoefficient", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.num_classes = num_classes
        self.matrix = self.add_weight(name="conf_mtx", shape=(num_classes, num_classes), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch to the confusion matrix."""
        del sample_weight
        true, predicted = (
            tf.one_hot(tf.argmax(scores, 1), self.num_classes, dtype=tf.float32) for scores in (y_true, y_pred)
        )
        self.matrix.assign(tf.convert_to_tensor(self.matrix) + tf.matmul(true, predicted, transpose_a=True))

    def result(self) -> tf.Tensor:
        """Returns the coefficient, or 0 if its denominator is 0."""
        matrix = tf.convert_to_tensor(self.matrix)
        true, predicted = tf.reduce_sum(matrix, 1), tf.reduce_sum(matrix, 0)
        total, correct = tf.reduce_sum(matrix), tf.linalg.trace(matrix)
        numerator = correct * total - tf.tensordot(true, predicted, 1)
        denominator = tf.sqrt((total**2 - tf.reduce_sum(predicted**2)) * (total**2 - tf.reduce_sum(true**2)))
        return tf.math.divide_no_nan(numerator, denominator)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes}


class InstanceNormalization(keras.layers.GroupNormalization):
    """Group normalization with a group for each channel."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "groups": -1})


class WeightNormalization(keras.layers.Wrapper):
    """Trains the length `g` and the direction `v` of a layer's kernel separately: `g * v / |v|` for each output.

    The first call initializes `g`. With `data_init`, it also sets the bias: the outputs for the first batch then have
    mean 0 and variance 1, if `|v|` is 1. Without `data_init`, `g` is set to `|v|`. In a recurrent layer, `g` and `v`
    are of the recurrent kernel.
    """

    def __init__(self, layer: tf.keras.layers.Layer, data_init: bool = True, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.data_init = data_init
        self._is_recurrent = isinstance(layer, keras.layers.RNN)

    @property
    def _holder(self) -> tf.keras.layers.Layer:
        return self.layer.cell if self._is_recurrent else self.layer

    @property
    def _kernel_name(self) -> str:
        return "recurrent_kernel" if self._is_recurrent else "kernel"

    @property
    def v(self) -> tf.Variable:
        """The variable that holds the direction, which is the layer's own kernel."""
        return getattr(self._holder, self._kernel_name)

    def build(self, input_shape: ShapeLike) -> None:
        """Builds the layer and creates `g`."""
        super().build(input_shape)
        if not hasattr(self._holder, self._kernel_name):
            raise ValueError(f"`WeightNormalization` needs a layer with a `kernel`, but `layer` is `{self.layer!r}`")
        self.g = self.add_weight(name="g", shape=(self.v.shape[-1],), initializer="ones", dtype=self.v.dtype)
        self._initialized = self.add_weight(
            name="initialized", shape=(), initializer="zeros", dtype="bool", trainable=False
        )

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Calls the layer with the normalized kernel."""
        if self.data_init and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise ValueError(
                "`WeightNormalization(data_init=True)` initializes weights from the first batch, which differs between"
                " replicas; set `data_init=False`"
            )
        bias = getattr(self.layer, "bias", None) if self.data_init else None
        variables = [self.g] if bias is None else [self.g, bias]
        values = tf.cond(
            tf.convert_to_tensor(self._initialized),
            lambda: [tf.identity(variable) for variable in variables],
            lambda: self._initial(inputs, len(variables)),
        )
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        self._initialized.assign(True)
        return self._call_with(inputs, self._normalized())

    def remove(self) -> tf.keras.layers.Layer:
        """Assigns the normalized kernel to the kernel of the layer, and returns the layer."""
        self.v.assign(self._normalized())
        return self.layer

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "data_init": self.data_init}

    def _normalized(self) -> tf.Tensor:
        v = tf.convert_to_tensor(self.v)
        return tf.nn.l2_normalize(v, axis=list(range(v.shape.rank - 1))) * self.g

    def _initial(self, inputs: tf.Tensor, count: int) -> list[tf.Tensor]:
        """Returns the initial values of `g` and, if `count` is 2, of the bias."""
        v, depth = tf.convert_to_tensor(self.v), self.v.shape[-1] or 1
        if not self.data_init:
            return [tf.norm(tf.reshape(v, [-1, depth]), axis=0)]
        activation = getattr(self.layer, "activation", None)
        if not self._is_recurrent:
            self.layer.activation = None
        try:
            outputs = self._call_with(inputs, v)
        finally:
            if not self._is_recurrent:
                self.layer.activation = activation
        mean, variance = tf.nn.moments(outputs, list(range(outputs.shape.rank - 1)))
        scale = tf.math.rsqrt(variance + 1e-10)
        # A recurrent kernel has a column per gate and unit. All gates of a unit get the scale of the unit's output.
        return [self.g * tf.tile(scale, [depth // (outputs.shape[-1] or 1)]), -mean * scale][:count]

    def _call_with(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Calls the layer with the tensor `kernel` in place of the kernel variable."""
        if environment.uses_keras_2():
            attributes = vars(self._holder)
            variable = attributes[self._kernel_name]
            attributes[self._kernel_name] = kernel
            try:
                return self.layer(inputs)
            finally:
                attributes[self._kernel_name] = variable
        v, non_trainable = self.v, self.layer.non_trainable_variables
        values = (
            [kernel if variable is v else variable for variable in variables]
            for variables in (self.layer.trainable_variables, non_trainable)
        )
        outputs, updated = self.layer.stateless_call(*values, inputs)
        for variable, value in zip(non_trainable, updated, strict=True):
            if variable is not v:
                variable.assign(value)
        return outputs


class GELU(keras.layers.Layer):
    """`gelu` as a layer. If `approximate`, it is approximated with `tanh`."""

    def __init__(self, approximate: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.approximate = approximate

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return gelu(inputs, self.approximate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "approximate": self.approximate}


def gelu(x: tf.Tensor, approximate: bool = True) -> tf.Tensor:
    """Returns `tf.nn.gelu(x)`, which is approximated by default."""
    return tf.nn.gelu(x, approximate)


def sigmoid_focal_crossentropy(
    y_true: tf.Tensor, y_pred: tf.Tensor, alpha: float = 0.25, gamma: float = 2.0, from_logits: bool = False
) -> tf.Tensor:
    """Returns the sum over the last axis of a cross-entropy in which well-predicted examples have small weights."""
    predicted = tf.convert_to_tensor(y_pred)
    true = tf.cast(y_true, predicted.dtype)
    entropy = keras.backend.binary_crossentropy(true, predicted, from_logits=from_logits)
    positive = tf.sigmoid(predicted) if from_logits else predicted
    probability = true * positive + (1 - true) * (1 - positive)
    weight = true * alpha + (1 - true) * (1 - alpha) if alpha else 1.0
    return tf.reduce_sum(weight * (1 - probability) ** gamma * entropy, axis=-1)


class SigmoidFocalCrossEntropy(keras.losses.Loss):
    """`sigmoid_focal_crossentropy` as a loss."""

    def __init__(
        self,
        from_logits: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        reduction: str | None = "none",
        name: str = "sigmoid_focal_crossentropy",
    ) -> None:
        super().__init__(reduction=reduction, name=name)
        self.settings = {"from_logits": from_logits, "alpha": alpha, "gamma": gamma}

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return sigmoid_focal_crossentropy(y_true, y_pred, **self.settings)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.settings}
