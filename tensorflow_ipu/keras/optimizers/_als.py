"""Keras optimizers that scale the loss, and adapt the scale to the magnitudes of gradients."""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults, is_number, note_bool
from tensorflow_ipu._base.tensors import tf_variable
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.optimizers._ipu_optimizers import AdamIpuOptimizer, RMSpropIpuOptimizer, SGDIpuOptimizer
from tensorflow_ipu.keras.optimizers._wrapper import OptimizerWrapper
from tensorflow_ipu.ops import reductions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

    from tensorflow_ipu._base.types import Config, Gradient, LearningRate, Nested, TensorLike, Variable
    from tensorflow_ipu.keras.optimizers._gradient_accumulation import ALSGradientAccumulationOptimizer


class ALSDefaults:
    """The defaults of the settings of `ALSOptimizer`."""

    initial_loss_scaling_factor = 1
    update_frequency = 8
    increase_factor = 2
    max_loss_scaling_factor = 32768
    accumulate_statistics_over_update_period = True
    ratio_threshold = 1e-05
    captured_grads_only = False
    lpf_alpha = 0
    histogram_bin_edge = 2**13


# The names of the settings in the order of the constructor's arguments.
_SETTINGS = tuple(name for name in vars(ALSDefaults) if not name.startswith("_"))
_FLAGS = ("accumulate_statistics_over_update_period", "captured_grads_only")
_POWERS = ("initial_loss_scaling_factor", "increase_factor", "max_loss_scaling_factor")


def _checked(values: dict[str, float]) -> types.SimpleNamespace:
    """Returns the settings after checking each of them and their combination."""
    faults = Faults()
    for name in _FLAGS:
        note_bool(name, values[name], faults)
    non_numbers = [name for name in _SETTINGS if name not in _FLAGS and not is_number(values[name])]
    for name in non_numbers:
        faults.add(TypeError, f"`{name}` must be a number, but is {values[name]!r}")
    if not non_numbers:
        _check_ranges(values, faults)
    faults.raise_any()
    return types.SimpleNamespace(**values)  # Keras would track a dict and save it with the optimizer.


def _check_ranges(values: dict[str, float], faults: Faults) -> None:
    def must_be(requirement: str, name: str, is_satisfied: bool) -> None:
        if not is_satisfied:
            faults.add(ValueError, f"`{name}` must be {requirement}, but is {values[name]}")

    frequency, factor = values["update_frequency"], values["increase_factor"]
    must_be("a whole number of 1 or more", "update_frequency", frequency >= 1 and frequency == int(frequency))
    for name in _POWERS:
        must_be("a power of two", name, values[name] > 0 and math.frexp(values[name])[0] == 0.5)
    must_be("above 1", "increase_factor", factor > 1)
    initial, limit = values["initial_loss_scaling_factor"], values["max_loss_scaling_factor"]
    if initial >= limit:
        faults.add(
            ValueError,
            f"`initial_loss_scaling_factor` must be less than `max_loss_scaling_factor`, but they are {initial} and"
            f" {limit}",
        )
    elif initial * factor >= limit:
        faults.add(
            ValueError,
            "`initial_loss_scaling_factor` x `increase_factor` must be less than `max_loss_scaling_factor`, but they are"
            f" {initial} x {factor} and {limit}: the scale could never increase",
        )
    must_be("greater than zero and less than one", "ratio_threshold", 0 < values["ratio_threshold"] < 1)
    must_be("at least zero and less than one", "lpf_alpha", 0 <= values["lpf_alpha"] < 1)
    must_be("above zero", "histogram_bin_edge", values["histogram_bin_edge"] > 0)


class setting:  # noqa: N801  (Lower case, as it is used like `property`.)
    """A property of an optimizer that gets and sets the entry of this name in its `_settings`. Checks values that are set.

    With `resets`, setting another value resets the scale and the statistics.
    """

    def __init__(self, doc: str, resets: bool = False) -> None:
        self.__doc__ = doc
        self._resets = resets

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        return self if optimizer is None else getattr(optimizer._settings, self._name)

    def __set__(self, optimizer: Any, value: float) -> None:
        old_value = getattr(optimizer._settings, self._name)
        optimizer._settings = _checked({**vars(optimizer._settings), self._name: value})
        if self._resets and value != old_value:
            optimizer.reset()


class read_only(property):  # noqa: N801
    """A property that raises a ValueError with its name when it is set."""

    def __set__(self, instance: object, value: object) -> None:
        assert self.fget is not None
        raise ValueError(
            f"`{self.fget.__name__}` is a read-only property: it follows from the training and the settings"
        )


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizer(OptimizerWrapper):
    """Scales the loss of a float16 model, so that small gradients do not vanish, and adapts the scale.

    The gradients of the scaled loss are divided by the scale, in float32, before the wrapped optimizer gets them.

        loss = optimizer.get_scaled_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    A histogram of two bins counts the elements of scaled gradients below and above an edge. It counts the gradients of
    float16, or all gradients if none is of float16. After `update_frequency` updates, the next update changes the
    scale; if `update_frequency` is 1, each update does. The scale is divided by `increase_factor` if the share above
    the edge exceeds `ratio_threshold`, and is multiplied by it otherwise. It stays unchanged if it would fall below 1
    or reach its maximum. The replicas of a program share the histogram and the scale.

    Gradients that `CaptureUpstreamGradients` and `CaptureActivationGradients` capture are counted too. `fit` passes
    them to the optimizer; a custom training loop passes them as `captured_grads`. If a gradient on any replica is not
    finite, the update is skipped on all replicas. NaN and infinities count as above the edge.
    """

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        initial_loss_scaling_factor: float = ALSDefaults.initial_loss_scaling_factor,
        update_frequency: int = ALSDefaults.update_frequency,
        increase_factor: float = ALSDefaults.increase_factor,
        max_loss_scaling_factor: float = ALSDefaults.max_loss_scaling_factor,
        accumulate_statistics_over_update_period: bool = ALSDefaults.accumulate_statistics_over_update_period,
        ratio_threshold: float = ALSDefaults.ratio_threshold,
        captured_grads_only: bool = ALSDefaults.captured_grads_only,
        lpf_alpha: float = ALSDefaults.lpf_alpha,
        histogram_bin_edge: float = ALSDefaults.histogram_bin_edge,
        name: str = "ALSOptimizer",
    ) -> None:
        """Wraps `opt`.

        Args:
          opt: A Keras optimizer.
          initial_loss_scaling_factor: The initial scale, a power of two.
          update_frequency: The number of updates after which the next one changes the scale; 1 means each update.
          increase_factor: The factor by which the scale increases or decreases, a power of two.
          max_loss_scaling_factor: The exclusive upper limit of the scale, a power of two above
            `initial_loss_scaling_factor` times `increase_factor`.
          accumulate_statistics_over_update_period: Whether the histogram counts all updates since the last change of
            the scale, instead of only the update that changes it.
          ratio_threshold: The largest share of gradient elements above the edge with which the scale increases, between 0
            and 1, both exclusive.
          captured_grads_only: Whether only the `captured_grads` of `apply_gradients` are counted.
          lpf_alpha: The weight of the previous share in the low-pass filter of shares, in [0, 1); 0 means no filter.
          histogram_bin_edge: The magnitude of the edge between the two bins.
          name: The wrapper's name.

        Raises:
          ValueError: A value is out of range; or `opt` is not a Keras optimizer or already scales the loss.
          TypeError: A value has a wrong type.
        """
        arguments = locals()
        settings = _checked({setting_name: arguments[setting_name] for setting_name in _SETTINGS})
        super().__init__(opt, name)
        self._settings = settings
        scaling_types = (ALSOptimizer, internals.LossScaleOptimizer)
        if isinstance(opt, scaling_types) or getattr(opt, "loss_scale_factor", None) is not None:
            raise ValueError(f"`opt` is {opt!r}, which scales the loss itself: wrap an optimizer that does not")
        # Created here and not in `build`, because the loss is scaled before the optimizer is built.
        scale: keras.initializers.Initializer = keras.initializers.Constant(initial_loss_scaling_factor)
        self._scale = self.add_variable((), scale, "float32", name="loss_scaling_factor")  # pyright: ignore[reportArgumentType]  # Keras annotates no type, so pyright infers that of the default.
        self._previous = self.add_variable((), scale, "float32", name="previous_loss_scaling_factor")  # pyright: ignore[reportArgumentType]  # Keras annotates no type, so pyright infers that of the default.
        self._updates = self.add_variable((), "zeros", "int32", name="updates")
        self._histogram = self.add_variable((2,), "zeros", "float32", name="histogram")
        self._share = self.add_variable((), "zeros", "float32", name="share_above")

    @read_only
    def loss_scaling_factor(self) -> keras.Variable:
        """The current scale, a float32 variable."""
        return self._scale

    @read_only
    def previous_loss_scaling_factor(self) -> keras.Variable:
        """The scale before its latest change, a float32 variable."""
        return self._previous

    @read_only
    def histogram(self) -> keras.Variable:
        """The counts of gradient elements below and above the edge since the last change, a float32 variable of shape [2]."""
        return self._histogram

    @read_only
    def normalized_histogram(self) -> tf.Tensor:
        """The histogram divided by its sum, a float32 tensor of shape [2]; zeros if nothing was counted."""
        counts = tf.convert_to_tensor(self._histogram)
        return tf.math.divide_no_nan(counts, tf.reduce_sum(counts))

    @read_only
    def update_counter(self) -> keras.Variable:
        """The number of updates since the last change of the scale, an int32 variable."""
        return self._updates

    @read_only
    def decrease_factor(self) -> float:
        """The factor by which the scale is multiplied when it decreases."""
        return 1.0 / self.increase_factor

    @property
    def supports_captured_grads(self) -> bool:
        """True: `apply_gradients` accepts `captured_grads`, and `fit` passes them."""
        return True

    def get_scaled_loss(self, loss: TensorLike) -> tf.Tensor:
        """Returns `loss` times the scale, in the type of `loss`, to be differentiated."""
        loss = tf.convert_to_tensor(loss)
        return loss * tf.cast(self._scale, loss.dtype)

    def get_gradients(self, loss: TensorLike, params: Sequence[Variable]) -> list[Gradient]:
        """Returns the gradient of the scaled loss for each of the variables `params`; `loss` is a tensor of a graph.

        Raises:
          RuntimeError: The call is eager.
          ValueError: The loss does not depend on one of the variables.
        """
        if tf.executing_eagerly():
            raise RuntimeError(
                "`get_gradients` needs a graph, but the call is eager: call it in a `tf.function`, or compute the gradients"
                " of `get_scaled_loss(loss)` by a `tf.GradientTape`"
            )
        variables = [tf_variable(param) for param in params]
        gradients = tf.gradients(self.get_scaled_loss(loss), variables)
        independent = [param.name for param, gradient in zip(params, gradients, strict=True) if gradient is None]
        if independent:
            raise ValueError(f"`loss` does not depend on {', '.join(f'`{name}`' for name in independent)}")
        return gradients

    def scale_loss(self, loss: TensorLike) -> tf.Tensor:
        """Returns the same as `get_scaled_loss`; the training loops of Keras call it."""
        return self.get_scaled_loss(loss)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
        captured_grads: Nested = None,
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> keras.Variable:
        """Counts the gradients of a scaled loss, updates the variables with them, and returns `iterations`.

        Args:
          grads_and_vars: Pairs of gradient and variable.
          captured_grads: A structure of other gradients of the scaled loss to count, such as gradients of activations.
          global_step: A variable that is increased by 1.
          name: Ignored.

        Raises:
          ValueError: `captured_grads_only` is set, but there are no captured gradients.
        """
        del name
        apply_counted(self, grads_and_vars, captured_grads)
        if global_step is not None:
            global_step.assign_add(1)
        return self.iterations

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable], captured: Nested = None) -> None:
        self.update(gradients, variables, self.count(gradients, captured))

    def count(
        self, gradients: Sequence[Gradient | None], captured: Nested = None, counted_before: bool = False
    ) -> tf.Tensor:
        """Adds scaled gradients and `captured` gradients to the histogram.

        `counted_before` is True if the captured gradients of this update have already been counted.

        Returns:
          The number of elements of `gradients`, without `captured`, that are not finite on any replica: a float32
          scalar.

        Raises:
          ValueError: `captured_grads_only` is set, but there are no captured gradients.
        """
        settings = self._settings
        present = [gradient for gradient in gradients if gradient is not None]
        captured_gradients = [gradient for gradient in tf.nest.flatten(captured) if gradient is not None]
        if settings.captured_grads_only and not captured_gradients and not counted_before:
            raise ValueError("`captured_grads_only` is set, but `captured_grads` has no gradient to count")
        counted = captured_gradients if settings.captured_grads_only else present + captured_gradients
        counted = [gradient for gradient in counted if gradient.dtype == tf.float16] or counted
        # `<=` is False for NaN, so NaN counts as above the edge.
        below = _count([tf.abs(_values(gradient)) <= float(settings.histogram_bin_edge) for gradient in counted])
        above = _count([tf.ones(tf.shape(_values(gradient)), tf.bool) for gradient in counted]) - below
        infinite = _count([~tf.math.is_finite(_values(gradient)) for gradient in present])
        counts = tf.stack([below, above, infinite])
        if reductions.in_program():
            [counts] = reductions.all_reduce([counts])
        histogram = tf.convert_to_tensor(self._histogram) + counts[:2]
        if not settings.accumulate_statistics_over_update_period:
            histogram = tf.where(self._is_due(), histogram, tf.zeros([2]))
        self._histogram.assign(histogram)
        return counts[2]

    def apply_accumulated(self, gradients: Sequence[Gradient | None], variables: Sequence[Variable]) -> None:
        """Updates the variables with accumulated gradients. Each step must have counted its captured gradients."""
        gradients, variables = self._match(gradients, variables)
        self.update(gradients, variables, self.count(gradients, counted_before=True))

    def update(self, gradients: Sequence[Gradient | None], variables: Sequence[Variable], infinite: tf.Tensor) -> None:
        """Updates the variables with scaled gradients if `infinite`, a result of `count`, is 0. Then adapts the scale."""
        # Gradients are unscaled in float32, because they could underflow in float16.
        inverse = 1.0 / tf.convert_to_tensor(self._scale)
        unscaled = [gradient if gradient is None else _unscaled(gradient, inverse) for gradient in gradients]

        def update() -> tf.Tensor:
            internals.update_with(self.inner_optimizer, unscaled, variables)
            return tf.constant(True)

        tf.cond(tf.equal(infinite, 0), update, lambda: tf.constant(False))
        self._adapt()

    def _is_due(self) -> tf.Tensor:
        frequency = int(self._settings.update_frequency)
        return tf.constant(True) if frequency == 1 else tf.convert_to_tensor(self._updates) >= frequency

    def _adapt(self) -> None:
        """Changes the scale if this update is due to, and resets the statistics then.

        Example: a scale of 1024, an `increase_factor` of 2 and a `ratio_threshold` of 1e-5. If more than 1 of 100,000
        elements is above the edge, the new scale is 512, and otherwise 2048. With `lpf_alpha`, the share that is
        compared is `lpf_alpha * previous_share + (1 - lpf_alpha) * share`.
        """
        settings = self._settings
        variables = (self._scale, self._previous, self._updates, self._histogram, self._share)
        scale, previous, updates, histogram, old_share = [tf.convert_to_tensor(variable) for variable in variables]
        is_due, total, alpha = self._is_due(), tf.reduce_sum(histogram), settings.lpf_alpha
        share = alpha * old_share + (1 - alpha) * tf.math.divide_no_nan(histogram[1], total)
        factor = float(settings.increase_factor)
        lower, higher = scale / factor, scale * factor
        lower = tf.where(lower >= 1.0, lower, scale)
        higher = tf.where(higher < float(settings.max_loss_scaling_factor), higher, scale)
        new_scale = tf.where(is_due, tf.where(share > settings.ratio_threshold, lower, higher), scale)
        self._previous.assign(tf.where(tf.equal(new_scale, scale), previous, scale))
        self._scale.assign(new_scale)
        self._share.assign(tf.where(is_due, share, old_share))
        self._updates.assign(tf.where(is_due, 0, updates + 1))
        self._histogram.assign(tf.where(is_due, tf.zeros([2]), histogram))

    def reset(self) -> None:
        """Sets the scale to its initial value, and clears the statistics."""
        for variable in (self._scale, self._previous):
            variable.assign(float(self.initial_loss_scaling_factor))
        for variable in (self._updates, self._histogram, self._share):
            variable.assign(tf.zeros(variable.shape, variable.dtype))

    # A program uses the values that these settings have when it is traced.

    update_frequency = setting("The number of updates after which the next one changes the scale; 1 means each update.")
    increase_factor = setting("The factor by which the scale increases or decreases.")
    initial_loss_scaling_factor = setting("The initial scale, also set by `reset`.")
    max_loss_scaling_factor = setting("The exclusive upper limit of the scale.")
    ratio_threshold = setting("The largest share of gradient elements above the edge with which the scale increases.")
    accumulate_statistics_over_update_period = setting("Whether all updates since the last change are counted.")
    histogram_bin_edge = setting("The magnitude of the edge between the two bins.")
    captured_grads_only = setting(
        "Whether only captured gradients are counted. A change resets the scale.", resets=True
    )
    lpf_alpha = setting(
        "The weight of the previous share in the low-pass filter. A change resets the scale.", resets=True
    )

    def get_config(self) -> Config:
        return {**super().get_config(), **vars(self._settings)}


def apply_counted(
    optimizer: ALSOptimizer | ALSGradientAccumulationOptimizer,
    grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
    captured: Nested,
) -> None:
    """Applies pairs of gradient and variable with `optimizer`, which also counts the captured gradients."""
    gradients, variables = zip(*grads_and_vars, strict=True)
    if captured is None:
        optimizer.apply(gradients, variables)  # A model that accumulates gradients replaces this method.
    else:
        optimizer._apply(*optimizer._match(gradients, variables), captured)


def _values(gradient: Gradient) -> tf.Tensor:
    return tf.cast(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient, tf.float32)


def _count(conditions: list[tf.Tensor]) -> tf.Tensor:
    """Returns the number of elements that are True in all tensors together, a float32 scalar."""
    counts = [tf.reduce_sum(tf.cast(condition, tf.float32)) for condition in conditions]
    return tf.add_n(counts) if counts else tf.constant(0.0)


def _unscaled(gradient: Gradient, inverse: tf.Tensor) -> Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_values(gradient) * inverse, gradient.indices, gradient.dense_shape)
    return _values(gradient) * inverse


_FLOAT_SLOTS: Any = dict.fromkeys(("velocity_dtype", "momentum_accum_dtype", "average_gradient_dtype"), "float32")


def _settings_and_name(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings and the name among the arguments of a constructor."""
    return {name: arguments[name] for name in (*_SETTINGS, "name")}


class _WithOptimizer(ALSOptimizer):
    """An `ALSOptimizer` that creates the optimizer that it wraps, with slots and updates in float32."""

    _PARAMETERS: tuple[str, ...] = ("learning_rate",)

    def get_config(self) -> Config:
        inner = self.inner_optimizer.get_config()
        config = super().get_config()
        del config["opt"]
        return {**{name: inner[name] for name in self._PARAMETERS}, **config}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, object] | None = None) -> Self:
        rate = config["learning_rate"]
        if isinstance(rate, dict):
            rate = keras.optimizers.schedules.deserialize(rate, custom_objects=custom_objects)
        return cls(**{**config, "learning_rate": rate})


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizerSGD(_WithOptimizer):
    """Gradient descent with momentum and automatic loss scaling; see `keras.optimizers.SGD` and `ALSOptimizer`."""

    _PARAMETERS = ("learning_rate", "momentum")

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.0,
        initial_loss_scaling_factor: float = ALSDefaults.initial_loss_scaling_factor,
        update_frequency: int = ALSDefaults.update_frequency,
        increase_factor: float = ALSDefaults.increase_factor,
        max_loss_scaling_factor: float = ALSDefaults.max_loss_scaling_factor,
        accumulate_statistics_over_update_period: bool = ALSDefaults.accumulate_statistics_over_update_period,
        ratio_threshold: float = ALSDefaults.ratio_threshold,
        captured_grads_only: bool = ALSDefaults.captured_grads_only,
        lpf_alpha: float = ALSDefaults.lpf_alpha,
        histogram_bin_edge: float = ALSDefaults.histogram_bin_edge,
        name: str = "ALSOptimizerSGD",
    ) -> None:
        """Creates the optimizer. The first two arguments are as for `keras.optimizers.SGD`, the others for `ALSOptimizer`."""
        super().__init__(
            SGDIpuOptimizer(learning_rate, momentum, momentum_accum_dtype=tf.float32),
            **_settings_and_name(locals()),
        )


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizerAdam(_WithOptimizer):
    """Adam with automatic loss scaling; see `keras.optimizers.Adam` and `ALSOptimizer`."""

    _PARAMETERS = ("learning_rate", "beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-07,
        initial_loss_scaling_factor: float = ALSDefaults.initial_loss_scaling_factor,
        update_frequency: int = ALSDefaults.update_frequency,
        increase_factor: float = ALSDefaults.increase_factor,
        max_loss_scaling_factor: float = ALSDefaults.max_loss_scaling_factor,
        accumulate_statistics_over_update_period: bool = ALSDefaults.accumulate_statistics_over_update_period,
        ratio_threshold: float = ALSDefaults.ratio_threshold,
        captured_grads_only: bool = ALSDefaults.captured_grads_only,
        lpf_alpha: float = ALSDefaults.lpf_alpha,
        histogram_bin_edge: float = ALSDefaults.histogram_bin_edge,
        name: str = "ALSOptimizerAdam",
    ) -> None:
        """Creates the optimizer. The first four arguments are as for `keras.optimizers.Adam`, the others for `ALSOptimizer`."""
        super().__init__(
            AdamIpuOptimizer(learning_rate, beta_1, beta_2, epsilon, m_dtype=tf.float32, v_dtype=tf.float32),
            **_settings_and_name(locals()),
        )


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizerRMSProp(_WithOptimizer):
    """RMSprop with automatic loss scaling; see `keras.optimizers.RMSprop` and `ALSOptimizer`."""

    _PARAMETERS = ("learning_rate", "rho", "momentum", "epsilon", "centered")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-07,
        centered: bool = False,
        initial_loss_scaling_factor: float = ALSDefaults.initial_loss_scaling_factor,
        update_frequency: int = ALSDefaults.update_frequency,
        increase_factor: float = ALSDefaults.increase_factor,
        max_loss_scaling_factor: float = ALSDefaults.max_loss_scaling_factor,
        accumulate_statistics_over_update_period: bool = ALSDefaults.accumulate_statistics_over_update_period,
        ratio_threshold: float = ALSDefaults.ratio_threshold,
        captured_grads_only: bool = ALSDefaults.captured_grads_only,
        lpf_alpha: float = ALSDefaults.lpf_alpha,
        histogram_bin_edge: float = ALSDefaults.histogram_bin_edge,
        name: str = "ALSOptimizerRMSProp",
    ) -> None:
        """Creates the optimizer. The first five arguments are as for `keras.optimizers.RMSprop`, others for `ALSOptimizer`."""
        super().__init__(
            RMSpropIpuOptimizer(learning_rate, rho, momentum, epsilon, centered, **_FLOAT_SLOTS),  # pyright: ignore[reportArgumentType]  # Keras annotates no type, so pyright infers that of the default.
            **_settings_and_name(locals()),
        )
