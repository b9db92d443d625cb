"""The options of a model, and the checks of what they are set to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue
from tensorflow_ipu.keras._accumulation import Accumulation
from tensorflow_ipu.keras._metrics import ReplicatedMetricReductionMethod
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod as Method


@dataclass
class Options:
    """What the `set_..._options` methods of a model have set."""

    accumulation_steps: int | None = None
    accumulation_method: Method = Method.SUM
    use_v2_optimizer: bool = False
    accumulation_kwargs: dict[str, Any] = field(default_factory=dict)
    pipelining_steps: int | None = None
    device_mapping: list[int] | None = None
    accumulate_outfeed: bool | None = None
    pipelining_kwargs: dict[str, Any] = field(default_factory=dict)
    infeed_kwargs: dict[str, Any] = field(default_factory=dict)
    outfeed_kwargs: dict[str, Any] = field(default_factory=dict)
    metric_reduction: ReplicatedMetricReductionMethod = ReplicatedMetricReductionMethod.NONE
    asynchronous_callbacks: bool = False

    @property
    def accumulation(self) -> Accumulation | None:
        """How gradients are accumulated; None where each step updates the weights."""
        if self.accumulation_steps is None or self.accumulation_steps == 1:
            return None
        return Accumulation(self.accumulation_steps, self.accumulation_method, self.accumulation_kwargs.get("dtype"))

    def pipelining(self) -> dict[str, Any]:
        """The arguments of `pipeline` that were set, but for counts and results."""
        return {**self.pipelining_kwargs, "reduction_method": self.accumulation_method}

    def set_gradient_accumulation(self, steps: Any, method: Any, use_v2: Any, kwargs: dict[str, Any]) -> None:
        """Takes the arguments of `set_gradient_accumulation_options`.

        Raises:
          ValueError: One of them is out of range, or set by another one.
          TypeError: One of them is unknown, or of a wrong kind.
        """
        _check_steps(steps)
        parsed = Method.parse(method)
        if not isinstance(use_v2, bool):
            raise TypeError(f"`use_v2_gradient_accumulation_optimizer` must be True or False, but is {use_v2!r}")
        if use_v2 and steps is None:
            raise ValueError(
                "`use_v2_gradient_accumulation_optimizer` may only be set to True when gradients are accumulated: set"
                " `gradient_accumulation_steps_per_replica` too"
            )
        _refuse(kwargs, {"opt": "the optimizer is the one that the model is compiled with"})
        _refuse(kwargs, {"num_mini_batches": "set `gradient_accumulation_steps_per_replica` instead"})
        _refuse_normalization(kwargs)
        _check_known("set_gradient_accumulation_options", kwargs, _ACCUMULATION_KWARGS)
        _check_dtype(kwargs.get("dtype"))
        if kwargs.get("replicated_optimizer_state_sharding") and not kwargs.get("offload_weight_update_variables"):
            raise ValueError(
                "`replicated_optimizer_state_sharding=True` wants the optimizer's state offloaded: set"
                " `offload_weight_update_variables=True` too"
            )
        self.accumulation_steps = None if steps is None else int(steps)
        self.accumulation_method = parsed
        self.use_v2_optimizer = use_v2
        self.accumulation_kwargs = dict(kwargs)

    def set_pipelining(
        self, steps: Any, device_mapping: Any, accumulate_outfeed: Any, method: Any, kwargs: dict[str, Any]
    ) -> None:
        """Takes the arguments of `set_pipelining_options`.

        Raises:
          ValueError: One of them is out of range, or set elsewhere.
          TypeError: One of them is unknown, or of a wrong kind.
        """
        _check_steps(steps)
        if device_mapping is not None and not (
            isinstance(device_mapping, list) and all(type(device) is int for device in device_mapping)
        ):
            raise ValueError(f"Expected `device_mapping` to be a list of integers, but it is {device_mapping!r}")
        if accumulate_outfeed is not None and not isinstance(accumulate_outfeed, bool):
            raise TypeError(f"`accumulate_outfeed` must be True, False or None, but is {accumulate_outfeed!r}")
        parsed = Method.parse(method)
        _refuse_normalization(kwargs)
        _refuse(
            kwargs,
            {
                "gradient_accumulation_count": "set `gradient_accumulation_steps_per_replica` instead",
                "reduction_method": "set `gradient_accumulation_reduction_method` instead",
            },
        )
        automatic = (
            "computational_stages",
            "repeat_count",
            "inputs",
            "infeed_queue",
            "outfeed_queue",
            "optimizer_function",
        )
        _refuse(kwargs, dict.fromkeys(automatic, "the model sets it"))
        never = ("outfeed_loss", "outfeed_mask", "batch_serialization_iterations")
        _refuse(kwargs, dict.fromkeys(never, "a Keras model has no use for it"))
        _check_known("set_pipelining_options", kwargs, _PIPELINING_KWARGS)
        self.pipelining_steps = None if steps is None else int(steps)
        self.device_mapping = device_mapping
        self.accumulate_outfeed = accumulate_outfeed
        self.accumulation_method = parsed
        self.pipelining_kwargs = dict(kwargs)

    def set_infeed(self, kwargs: dict[str, Any]) -> None:
        """Takes the arguments of `set_infeed_queue_options`.

        Raises:
          ValueError: One of them is out of range, or set by the model.
          TypeError: One of them is unknown, or of a wrong kind.
        """
        automatic = ("dataset", "infeed_spec", "element_spec")
        _refuse(kwargs, dict.fromkeys(automatic, "the model sets it"))
        _refuse(kwargs, {"device_ordinal": "the strategy has the device"})
        _check_known("set_infeed_queue_options", kwargs, _INFEED_KWARGS)
        _probe(lambda dataset: IPUInfeedQueue(dataset, device_ordinal=0, **kwargs))
        self.infeed_kwargs = dict(kwargs)

    def set_outfeed(self, kwargs: dict[str, Any]) -> None:
        """Takes the arguments of `set_outfeed_queue_options`.

        Raises:
          ValueError: One of them is out of range, or set by the model.
          TypeError: One of them is unknown, or of a wrong kind.
        """
        _refuse(kwargs, {"outfeed_mode": "the model sets it", "device_ordinal": "the strategy has the device"})
        _check_known("set_outfeed_queue_options", kwargs, _OUTFEED_KWARGS)
        IPUOutfeedQueue(device_ordinal=0, **kwargs)
        self.outfeed_kwargs = dict(kwargs)


_ACCUMULATION_KWARGS = (
    "dtype",
    "name",
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "verify_usage",
)
_PIPELINING_KWARGS = (
    "accumulate_outfeed_dtype",
    "backward_propagation_stages_poplar_options",
    "continuous_weight_updates",
    "forward_propagation_stages_poplar_options",
    "gradient_accumulation_dtype",
    "gradient_accumulation_for_captured_grads",
    "name",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "offload_weight_update_variables",
    "offload_weights",
    "pipeline_schedule",
    "recomputation_mode",
    "replicated_optimizer_state_sharding",
    "replicated_weight_sharding",
    "weight_update_poplar_options",
)
_INFEED_KWARGS = ("optimise_latency", "prefetch_depth")
_OUTFEED_KWARGS = ("buffer_depth", "optimise_latency")


def _check_steps(steps: Any) -> None:
    if steps is None:
        return
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or int(steps) < 1:
        raise ValueError(
            f"Expected `gradient_accumulation_steps_per_replica` to be a positive integer, but got {steps!r}"
        )


def _refuse(kwargs: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    for name, reason in reasons.items():
        if name in kwargs:
            raise ValueError(f"`{name}` cannot be set here: {reason}")


def _refuse_normalization(kwargs: Mapping[str, Any]) -> None:
    reason = "set `gradient_accumulation_reduction_method` to 'sum', 'mean' or 'running_mean' instead"
    _refuse(kwargs, {"experimental_normalize_gradients": reason})


def _check_known(method: str, kwargs: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(kwargs) - set(known))
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        raise TypeError(f"`{method}` has no option {names}; the options by name are {', '.join(known)}")


def _check_dtype(given: Any) -> None:
    dtype: Any = given
    if given is None or (callable(given) and not isinstance(given, (type, tf.DType))):
        return
    try:
        tf.as_dtype(dtype)
    except TypeError as exc:
        raise TypeError(f"`dtype` must be a dtype, a function of a variable to one, or None, but is {dtype!r}") from exc


def _probe(make: Any) -> None:
    """Has a queue check its arguments."""
    make(tf.data.Dataset.range(1))
