"""The Keras optimizer that scales the loss, and finds the scale by the magnitudes of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tensorflow_ipu.keras.optimizers._als_settings import ALSDefaults, ALSSettings
from tensorflow_ipu.keras.optimizers._wrapper import OptimizerWrapper
from tensorflow_ipu.ops import reductions


@keras.saving.register_keras_serializable("tensorflow_ipu")
class ALSOptimizer(OptimizerWrapper):
    """Scales the loss of a float16 model, so that small gradients do not vanish, and adapts the scale.

    Training goes on as without it, but for what float16 would lose: the gradients of the scaled loss are divided by the
    scale, in float32, before the wrapped optimizer gets them.

        loss = optimizer.get_scaled_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    A histogram counts the scaled gradients above and below an edge. After so many updates, the scale falls by
    `increase_factor` if too many of them were above, and grows by it if not, between 1 and its maximum. The replicas of a
    program share the histogram, and so the scale.

    Where an IPU's float16 ends at its largest number, the emulator's becomes infinite. An update with a gradient that is
    not finite, on any replica, is skipped; such gradients count as above the edge.
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
          update_frequency: Every how many updates the scale changes.
          increase_factor: By what it grows or falls, a power of two.
          max_loss_scaling_factor: What it grows to at most, a power of two above `initial_loss_scaling_factor` times
            `increase_factor`.
          accumulate_statistics_over_update_period: Whether the histogram counts all updates since the last change, and
            not the latest one alone.
          ratio_threshold: Which share of gradients may be above the edge, in (0, 1).
          captured_grads_only: Whether to count what `apply_gradients` gets as `captured_grads`, and nothing else.
          lpf_alpha: How much of the earlier share stays in the next one, in [0, 1): a low-pass filter; 0 is none.
          histogram_bin_edge: The magnitude of the edge.
          name: The wrapper's name.

        Raises:
          ValueError: A value is out of range; or `opt` is no Keras optimizer, or one that scales the loss already.
          TypeError: A value is of a wrong type.
        """
        settings = ALSSettings(
            initial_loss_scaling_factor,
            update_frequency,
            increase_factor,
            max_loss_scaling_factor,
            accumulate_statistics_over_update_period,
            ratio_threshold,
            captured_grads_only,
            lpf_alpha,
            histogram_bin_edge,
        )
        super().__init__(opt, name)
        self._settings = settings
        scales = (ALSOptimizer, keras.optimizers.LossScaleOptimizer)
        if isinstance(opt, scales) or opt.loss_scale_factor is not None:
            raise ValueError(f"`opt` is {opt!r}, which scales the loss itself: wrap an optimizer that does not")
        # Made here, since the loss is scaled before the optimizer knows its variables.
        scale: Any = keras.initializers.Constant(initial_loss_scaling_factor)
        self._scale = self.add_variable((), scale, "float32", name="loss_scaling_factor")
        self._updates = self.add_variable((), "zeros", "int32", name="updates")
        self._histogram = self.add_variable((2,), "zeros", "float32", name="histogram")
        self._share = self.add_variable((), "zeros", "float32", name="share_above")

    @property
    def loss_scaling_factor(self) -> Any:
        """The scale of now: a float32 variable."""
        return self._scale

    @property
    def histogram(self) -> Any:
        """How many gradients were below the edge and above it, since the last change: a float32 variable of shape [2]."""
        return self._histogram

    def get_scaled_loss(self, loss: Any) -> Any:
        """The loss to differentiate: `loss` times the scale, in the type of `loss`."""
        loss = tf.convert_to_tensor(loss)
        return loss * tf.cast(self._scale.value, loss.dtype)

    def scale_loss(self, loss: Any) -> Any:
        """The same as `get_scaled_loss`; what Keras's own loops call."""
        return self.get_scaled_loss(loss)

    def apply_gradients(
        self, grads_and_vars: Any, captured_grads: Any = None, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Updates the variables with the gradients of a scaled loss, and counts the latter.

        Args:
          grads_and_vars: Pairs of gradient and variable.
          captured_grads: A structure of other gradients of the scaled loss, such as those of activations, to count.
          global_step: A variable to count the calls in.
          name: Accepted, as the original does; operations go by the optimizer's name.

        Returns:
          The wrapped optimizer's `iterations`.

        Raises:
          ValueError: `captured_grads_only` is set, and there are none.
        """
        del name
        gradients, variables = zip(*grads_and_vars, strict=True)
        if captured_grads is None:
            self.apply(gradients, variables)
        else:
            self._step(*self._matched(gradients, variables), captured_grads)
        if global_step is not None:
            global_step.assign_add(1)
        return self.iterations

    def _apply(self, gradients: list[Any], variables: list[Any]) -> None:
        self._step(gradients, variables, None)

    def _step(self, gradients: list[Any], variables: list[Any], captured: Any) -> None:
        self.update(gradients, variables, self.count(gradients, captured))

    def count(self, gradients: Sequence[Any], captured: Any = None) -> Any:
        """Counts scaled gradients in the histogram.

        Args:
          gradients: Those of the variables; None for one that the loss does not reach.
          captured: A structure of others.

        Returns:
          How many of `gradients` are not finite on any replica, a float32 scalar.

        Raises:
          ValueError: `captured_grads_only` is set, and there are none.
        """
        settings = self._settings.values
        known = [gradient for gradient in gradients if gradient is not None]
        others = [gradient for gradient in tf.nest.flatten(captured) if gradient is not None]
        if settings["captured_grads_only"] and not others:
            raise ValueError("`captured_grads_only` is set, but `captured_grads` has no gradient to count")
        counted = others if settings["captured_grads_only"] else known + others
        # What is no number is not below, and so above.
        below = _count([tf.abs(_values(gradient)) <= float(settings["histogram_bin_edge"]) for gradient in counted])
        above = _count([tf.ones(tf.shape(_values(gradient)), tf.bool) for gradient in counted]) - below
        infinite = _count([~tf.math.is_finite(_values(gradient)) for gradient in known])
        counts = tf.stack([below, above, infinite])
        if reductions.in_program():
            [counts] = reductions.all_reduce([counts])
        earlier = self._histogram.value if settings["accumulate_statistics_over_update_period"] else 0.0
        self._histogram.assign(earlier + counts[:2])
        return counts[2]

    def update(self, gradients: Sequence[Any], variables: Sequence[Any], infinite: Any) -> None:
        """Updates the variables unless gradients are not finite, and the scale when it is time.

        Args:
          gradients: Scaled ones.
          variables: Those of the gradients.
          infinite: How many gradients are not finite, as `count` returned it.
        """
        # In float32, where what the scale saved from vanishing has its place.
        inverse = 1.0 / self._scale.value
        unscaled = [gradient if gradient is None else _unscaled(gradient, inverse) for gradient in gradients]
        tf.cond(
            tf.equal(infinite, 0),
            lambda: _done(self.inner_optimizer.apply(unscaled, variables)),
            lambda: tf.constant(False),
        )
        self._adapt()

    def _adapt(self) -> None:
        settings = self._settings.values
        updates = self._updates.value + 1
        due = updates >= int(settings["update_frequency"])
        total = tf.reduce_sum(self._histogram.value)
        alpha = settings["lpf_alpha"]
        share = alpha * self._share.value + (1 - alpha) * tf.math.divide_no_nan(self._histogram.value[1], total)
        scale, factor = self._scale.value, float(settings["increase_factor"])
        changed = tf.where(share > settings["ratio_threshold"], scale / factor, scale * factor)
        changed = tf.clip_by_value(changed, 1.0, float(settings["max_loss_scaling_factor"]))
        self._scale.assign(tf.where(due, changed, scale))
        self._share.assign(tf.where(due, share, self._share.value))
        self._updates.assign(tf.where(due, 0, updates))
        self._histogram.assign(tf.where(due, tf.zeros([2]), self._histogram.value))

    def reset(self) -> None:
        """Begins anew: with the initial scale, and with nothing counted."""
        self._scale.assign(float(self.initial_loss_scaling_factor))
        for variable in (self._updates, self._histogram, self._share):
            variable.assign(tf.zeros(variable.shape, variable.dtype))

    @property
    def update_frequency(self) -> int:
        """Every how many updates the scale changes. Programs that are traced already keep the value of their trace."""
        return self._settings.values["update_frequency"]

    @update_frequency.setter
    def update_frequency(self, val: int) -> None:
        self._settings.change("update_frequency", val)

    @property
    def increase_factor(self) -> float:
        """By what the scale grows or falls. See `update_frequency`."""
        return self._settings.values["increase_factor"]

    @increase_factor.setter
    def increase_factor(self, val: float) -> None:
        self._settings.change("increase_factor", val)

    @property
    def initial_loss_scaling_factor(self) -> float:
        """The scale at the start, and after `reset`."""
        return self._settings.values["initial_loss_scaling_factor"]

    @initial_loss_scaling_factor.setter
    def initial_loss_scaling_factor(self, val: float) -> None:
        self._settings.change("initial_loss_scaling_factor", val)

    @property
    def max_loss_scaling_factor(self) -> float:
        """What the scale grows to at most. See `update_frequency`."""
        return self._settings.values["max_loss_scaling_factor"]

    @max_loss_scaling_factor.setter
    def max_loss_scaling_factor(self, val: float) -> None:
        self._settings.change("max_loss_scaling_factor", val)

    @property
    def ratio_threshold(self) -> float:
        """Which share of gradients may be above the edge. See `update_frequency`."""
        return self._settings.values["ratio_threshold"]

    @ratio_threshold.setter
    def ratio_threshold(self, val: float) -> None:
        self._settings.change("ratio_threshold", val)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` makes an equal optimizer of."""
        return {**super().get_config(), **self._settings.values}


def _values(gradient: Any) -> Any:
    return tf.cast(getattr(gradient, "values", gradient), tf.float32)


def _count(truths: list[Any]) -> Any:
    """How many are true in all tensors together, a float32 scalar."""
    counts = [tf.reduce_sum(tf.cast(values, tf.float32)) for values in truths]
    return tf.add_n(counts) if counts else tf.constant(0.0)


def _unscaled(gradient: Any, inverse: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_values(gradient) * inverse, gradient.indices, gradient.dense_shape)
    return _values(gradient) * inverse


def _done(_: None) -> Any:
    return tf.constant(True)
