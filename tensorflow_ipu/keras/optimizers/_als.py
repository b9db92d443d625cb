"""Keras optimizers that scale the loss, and find the scale by the magnitudes of gradients."""

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
    """The defaults of automatic loss scaling. `ALSOptimizer` says what they mean."""

    initial_loss_scaling_factor = 1
    update_frequency = 8
    increase_factor = 2
    max_loss_scaling_factor = 32768
    accumulate_statistics_over_update_period = True
    ratio_threshold = 1e-05
    captured_grads_only = False
    lpf_alpha = 0
    histogram_bin_edge = 2**13


# The names of the settings, in the order of arguments.
_SETTINGS = tuple(name for name in vars(ALSDefaults) if not name.startswith("_"))
_FLAGS = ("accumulate_statistics_over_update_period", "captured_grads_only")
_POWERS = ("initial_loss_scaling_factor", "increase_factor", "max_loss_scaling_factor")


def _checked(values: dict[str, float]) -> types.SimpleNamespace:
    """The settings, each of which is right alone and beside the others."""
    faults = Faults()
    for name in _FLAGS:
        note_bool(name, values[name], faults)
    wrong = [name for name in _SETTINGS if name not in _FLAGS and not is_number(values[name])]
    for name in wrong:
        faults.add(TypeError, f"`{name}` must be a number, but is {values[name]!r}")
    if not wrong:
        _check_numbers(values, faults)
    faults.raise_any()
    return types.SimpleNamespace(**values)  # Keras would wrap and save a dict.


def _check_numbers(values: dict[str, float], faults: Faults) -> None:
    def must_be(what: str, name: str, holds: bool) -> None:
        if not holds:
            faults.add(ValueError, f"`{name}` must be {what}, but is {values[name]}")

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
            f" {initial} x {factor} and {limit}: there would be nothing to increase",
        )
    must_be("greater than zero and less than one", "ratio_threshold", 0 < values["ratio_threshold"] < 1)
    must_be("at least zero and less than one", "lpf_alpha", 0 <= values["lpf_alpha"] < 1)
    must_be("above zero", "histogram_bin_edge", values["histogram_bin_edge"] > 0)


class setting:  # noqa: N801  (It reads as `property` does.)
    """An attribute of an optimizer that is one of its `_settings`: read, and set if the value is right."""

    def __init__(self, doc: str, resets: bool = False) -> None:
        self.__doc__ = doc
        self._resets = resets

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        return self if optimizer is None else getattr(optimizer._settings, self._name)

    def __set__(self, optimizer: Any, value: float) -> None:
        before = getattr(optimizer._settings, self._name)
        optimizer._settings = _checked({**vars(optimizer._settings), self._name: value})
        if self._resets and value != before:
            optimizer.reset()


class read_only(property):  # noqa: N801
    """A property that says so where it is set."""

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

    A histogram counts the scaled gradients above and below an edge: those of float16, or all where none are. In the update
    after `update_frequency` others, or with 1 in each, the scale falls by `increase_factor` if too many of them were above,
    and grows by it if not; it stays where it would fall below 1 or reach its maximum. The replicas of a program share the
    histogram, and so the scale.

    Gradients that `CaptureUpstreamGradients` and `CaptureActivationGradients` capture count too: `fit` hands them over, a
    loop of your own by `captured_grads`. An update with a gradient that is not finite, on any replica, is skipped; such
    gradients count as above the edge.
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
          initial_loss_scaling_factor: The scale at the start, a power of two.
          update_frequency: After how many updates the next one changes the scale; 1 for each.
          increase_factor: By what it grows or falls, a power of two.
          max_loss_scaling_factor: What it stays below, a power of two above `initial_loss_scaling_factor` times
            `increase_factor`.
          accumulate_statistics_over_update_period: Whether the histogram counts all updates since the last change, and
            not that of the change alone.
          ratio_threshold: Which share of gradients may be above the edge, in (0, 1).
          captured_grads_only: Whether to count what `apply_gradients` gets as `captured_grads`, and nothing else.
          lpf_alpha: How much of the earlier share stays in the next one, in [0, 1): a low-pass filter; 0 is none.
          histogram_bin_edge: The magnitude of the edge.
          name: The wrapper's name.

        Raises:
          ValueError: A value is out of range; or `opt` is no Keras optimizer, or one that scales the loss already.
          TypeError: A value is of a wrong type.
        """
        arguments = locals()
        settings = _checked({each: arguments[each] for each in _SETTINGS})
        super().__init__(opt, name)
        self._settings = settings
        scales = (ALSOptimizer, internals.LossScaleOptimizer)
        if isinstance(opt, scales) or getattr(opt, "loss_scale_factor", None) is not None:
            raise ValueError(f"`opt` is {opt!r}, which scales the loss itself: wrap an optimizer that does not")
        # Made here, since the loss is scaled before the optimizer knows its variables.
        scale: keras.initializers.Initializer = keras.initializers.Constant(initial_loss_scaling_factor)
        self._scale = self.add_variable((), scale, "float32", name="loss_scaling_factor")  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
        self._previous = self.add_variable((), scale, "float32", name="previous_loss_scaling_factor")  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
        self._updates = self.add_variable((), "zeros", "int32", name="updates")
        self._histogram = self.add_variable((2,), "zeros", "float32", name="histogram")
        self._share = self.add_variable((), "zeros", "float32", name="share_above")

    @read_only
    def loss_scaling_factor(self) -> keras.Variable:
        """The scale of now: a float32 variable."""
        return self._scale

    @read_only
    def previous_loss_scaling_factor(self) -> keras.Variable:
        """The scale before its latest change: a float32 variable."""
        return self._previous

    @read_only
    def histogram(self) -> keras.Variable:
        """How many gradients were below the edge and above it, since the last change: a float32 variable of shape [2]."""
        return self._histogram

    @read_only
    def normalized_histogram(self) -> tf.Tensor:
        """Which shares of them were, a float32 tensor of shape [2]: zeros where nothing was counted."""
        counts = tf.convert_to_tensor(self._histogram)
        return tf.math.divide_no_nan(counts, tf.reduce_sum(counts))

    @read_only
    def update_counter(self) -> keras.Variable:
        """How many updates were made since the last change: an int32 variable."""
        return self._updates

    @read_only
    def decrease_factor(self) -> float:
        """What the scale is multiplied by when it falls."""
        return 1.0 / self.increase_factor

    @property
    def supports_captured_grads(self) -> bool:
        """Whether `apply_gradients` takes `captured_grads`, so that `fit` hands them over."""
        return True

    def get_scaled_loss(self, loss: TensorLike) -> tf.Tensor:
        """The loss to differentiate: `loss` times the scale, in the type of `loss`."""
        loss = tf.convert_to_tensor(loss)
        return loss * tf.cast(self._scale, loss.dtype)

    def get_gradients(self, loss: TensorLike, params: Sequence[Variable]) -> list[Gradient]:
        """The gradients of the scaled loss, a tensor of a graph, for each of the variables `params`.

        Raises:
          RuntimeError: The call is eager.
          ValueError: The loss does not depend on one of the variables.
        """
        if tf.executing_eagerly():
            raise RuntimeError(
                "`get_gradients` goes back through a graph, and the call is eager: call it in a `tf.function`, or take the"
                " gradients of `get_scaled_loss(loss)` by a `tf.GradientTape`"
            )
        variables = [tf_variable(param) for param in params]
        gradients = tf.gradients(self.get_scaled_loss(loss), variables)
        lost = [param.name for param, gradient in zip(params, gradients, strict=True) if gradient is None]
        if lost:
            raise ValueError(f"`loss` does not depend on {', '.join(f'`{name}`' for name in lost)}")
        return gradients

    def scale_loss(self, loss: TensorLike) -> tf.Tensor:
        """The same as `get_scaled_loss`; what Keras's own loops call."""
        return self.get_scaled_loss(loss)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
        captured_grads: Nested = None,
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> keras.Variable:
        """Updates the variables with the gradients of a scaled loss, counts those, and returns `iterations`.

        Args:
          grads_and_vars: Pairs of gradient and variable.
          captured_grads: A structure of other gradients of the scaled loss, such as those of activations, to count.
          global_step: A variable to count the calls in.
          name: Accepted; operations go by the optimizer's name.

        Raises:
          ValueError: `captured_grads_only` is set, and there are none.
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
        """Counts scaled gradients and `captured` ones; returns how many of the former are not finite, a float32 scalar.

        `counted_before` says that the captured ones of this update were counted already.

        Raises:
          ValueError: `captured_grads_only` is set, and there are none.
        """
        settings = self._settings
        known = [gradient for gradient in gradients if gradient is not None]
        others = [gradient for gradient in tf.nest.flatten(captured) if gradient is not None]
        if settings.captured_grads_only and not others and not counted_before:
            raise ValueError("`captured_grads_only` is set, but `captured_grads` has no gradient to count")
        counted = others if settings.captured_grads_only else known + others
        counted = [gradient for gradient in counted if gradient.dtype == tf.float16] or counted
        # What is no number is not below, and so above.
        below = _count([tf.abs(_values(gradient)) <= float(settings.histogram_bin_edge) for gradient in counted])
        above = _count([tf.ones(tf.shape(_values(gradient)), tf.bool) for gradient in counted]) - below
        infinite = _count([~tf.math.is_finite(_values(gradient)) for gradient in known])
        counts = tf.stack([below, above, infinite])
        if reductions.in_program():
            [counts] = reductions.all_reduce([counts])
        histogram = tf.convert_to_tensor(self._histogram) + counts[:2]
        if not settings.accumulate_statistics_over_update_period:
            histogram = tf.where(self._is_due(), histogram, tf.zeros([2]))
        self._histogram.assign(histogram)
        return counts[2]

    def apply_accumulated(self, gradients: Sequence[Gradient | None], variables: Sequence[Variable]) -> None:
        """Updates the variables with gradients of several steps, whose captured gradients were counted with each."""
        known, matching = self._matched(gradients, variables)
        self.update(known, matching, self.count(known, counted_before=True))

    def update(self, gradients: Sequence[Gradient | None], variables: Sequence[Variable], infinite: tf.Tensor) -> None:
        """Updates the variables by scaled gradients if `infinite`, as of `count`, is 0; and the scale when it is time."""
        # In float32, where what the scale saved from vanishing has its place.
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
        settings = self._settings
        states = (self._scale, self._previous, self._updates, self._histogram, self._share)
        scale, previous, updates, histogram, before = [tf.convert_to_tensor(state) for state in states]
        due, total, alpha = self._is_due(), tf.reduce_sum(histogram), settings.lpf_alpha
        share = alpha * before + (1 - alpha) * tf.math.divide_no_nan(histogram[1], total)
        factor = float(settings.increase_factor)
        lower, higher = scale / factor, scale * factor
        lower = tf.where(lower >= 1.0, lower, scale)
        higher = tf.where(higher < float(settings.max_loss_scaling_factor), higher, scale)
        changed = tf.where(due, tf.where(share > settings.ratio_threshold, lower, higher), scale)
        self._previous.assign(tf.where(tf.equal(changed, scale), previous, scale))
        self._scale.assign(changed)
        self._share.assign(tf.where(due, share, before))
        self._updates.assign(tf.where(due, 0, updates + 1))
        self._histogram.assign(tf.where(due, tf.zeros([2]), histogram))

    def reset(self) -> None:
        """Begins anew: with the initial scale, and with nothing counted."""
        for variable in (self._scale, self._previous):
            variable.assign(float(self.initial_loss_scaling_factor))
        for variable in (self._updates, self._histogram, self._share):
            variable.assign(tf.zeros(variable.shape, variable.dtype))

    # Programs that are traced already keep what these were at their trace.

    update_frequency = setting("After how many updates the next one changes the scale; 1 for each.")
    increase_factor = setting("By what the scale grows or falls.")
    initial_loss_scaling_factor = setting("The scale at the start, and after `reset`.")
    max_loss_scaling_factor = setting("What the scale stays below.")
    ratio_threshold = setting("Which share of gradients may be above the edge.")
    accumulate_statistics_over_update_period = setting("Whether all updates since the last change count.")
    histogram_bin_edge = setting("The magnitude of the edge.")
    captured_grads_only = setting("Whether captured gradients alone count. To change it resets the scale.", resets=True)
    lpf_alpha = setting(
        "How much of the earlier share stays in the next one. To change it resets the scale.", resets=True
    )

    def get_config(self) -> Config:
        return {**super().get_config(), **vars(self._settings)}


def apply_counted(
    optimizer: ALSOptimizer | ALSGradientAccumulationOptimizer,
    grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
    captured: Nested,
) -> None:
    """Applies pairs of gradient and variable, and has captured gradients counted with them."""
    gradients, variables = zip(*grads_and_vars, strict=True)
    if captured is None:
        optimizer.apply(gradients, variables)  # Models put another function there while they accumulate.
    else:
        optimizer._apply(*optimizer._matched(gradients, variables), captured)


def _values(gradient: Gradient) -> tf.Tensor:
    return tf.cast(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient, tf.float32)


def _count(truths: list[tf.Tensor]) -> tf.Tensor:
    """How many are true in all tensors together, a float32 scalar."""
    counts = [tf.reduce_sum(tf.cast(values, tf.float32)) for values in truths]
    return tf.add_n(counts) if counts else tf.constant(0.0)


def _unscaled(gradient: Gradient, inverse: tf.Tensor) -> Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_values(gradient) * inverse, gradient.indices, gradient.dense_shape)
    return _values(gradient) * inverse


_FLOAT_SLOTS: Any = dict.fromkeys(("velocity_dtype", "momentum_accum_dtype", "average_gradient_dtype"), "float32")


def _as_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The settings among the arguments of a constructor, and the name."""
    return {name: arguments[name] for name in (*_SETTINGS, "name")}


class _WithParameters(ALSOptimizer):
    """Has an optimizer of its own, which keeps its state and computes its updates in float32."""

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
class ALSOptimizerSGD(_WithParameters):
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
        """Makes an optimizer. See `keras.optimizers.SGD` for the first two arguments, `ALSOptimizer` for the others."""
        super().__init__(
            SGDIpuOptimizer(learning_rate, momentum, momentum_accum_dtype=tf.float32),
            **_as_arguments(locals()),
        )


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizerAdam(_WithParameters):
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
        """Makes an optimizer. See `keras.optimizers.Adam` for the first four arguments, `ALSOptimizer` for the others."""
        super().__init__(
            AdamIpuOptimizer(learning_rate, beta_1, beta_2, epsilon, m_dtype=tf.float32, v_dtype=tf.float32),
            **_as_arguments(locals()),
        )


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizerRMSProp(_WithParameters):
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
        """Makes an optimizer. See `keras.optimizers.RMSprop` for the first five arguments, `ALSOptimizer` for others."""
        super().__init__(
            RMSpropIpuOptimizer(learning_rate, rho, momentum, epsilon, centered, **_FLOAT_SLOTS),  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
            **_as_arguments(locals()),
        )
