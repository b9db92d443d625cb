"""The arguments of `pipeline` as they were given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Given:
    """What `pipeline` was called with, under the names of its arguments; nothing of it is checked yet."""

    computational_stages: Any
    gradient_accumulation_count: Any
    gradient_accumulation_dtype: Any
    gradient_accumulation_for_captured_grads: Any
    repeat_count: Any
    batch_serialization_iterations: Any
    inputs: Any
    infeed_queue: Any
    outfeed_queue: Any
    optimizer_function: Any
    device_mapping: Any
    pipeline_schedule: Any
    recomputation_mode: Any
    forward_propagation_stages_poplar_options: Any
    backward_propagation_stages_poplar_options: Any
    weight_update_poplar_options: Any
    offload_weight_update_variables: Any
    replicated_optimizer_state_sharding: Any
    offload_activations: Any
    offload_gradient_accumulation_buffers: Any
    replicated_weight_sharding: Any
    offload_weights: Any
    continuous_weight_updates: Any
    outfeed_loss: Any
    accumulate_outfeed: Any
    accumulate_outfeed_dtype: Any
    outfeed_mask: Any
    reduction_method: Any
