"""How many replicas run a model's programs: as many as the IPUs of its stages or shards fit into the device."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import keras
import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.keras import _keras_internals as internals
from tensorflow_ipu.keras.pipeline.stages import entered

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested
    from tensorflow_ipu.strategy import IPUStrategyV1


def fitting(ipus: int, needed: int, model: keras.Model, where: str) -> int:
    """How many replicas fit into a device.

    Args:
      ipus: How many IPUs the device has.
      needed: How many one replica has.
      model: The model, for messages.
      where: What is on these IPUs, for messages.

    Raises:
      ValueError: The replicas do not fill the device.
    """
    if ipus % needed:
        raise ValueError(
            f"Current device has {ipus} IPUs attached, however the current model `{model.name}` requires a multiple of"
            f" {needed} IPUs: {where}. Configure so many with `IPUConfig.auto_select_ipus`"
        )
    return ipus // needed


def symbols_of(spec: Nested) -> Nested:
    """The inputs of a model for data of this spec, as symbols.

    Args:
      spec: A batch: a structure of `tf.TensorSpec`, in which None stands for data that is missing.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
    return keras.tree.map_structure(
        lambda leaf: keras.KerasTensor(leaf.shape, keras.backend.standardize_dtype(leaf.dtype)), x
    )


class Look(NamedTuple):
    """What a call of a model shows.

    Attributes:
      ipus: How many IPUs its layers are on, by the `ipu_shard` scopes in their `call`: a power of 2.
      has_stages: Whether it enters a `PipelineStage` scope.
    """

    ipus: int
    has_stages: bool


def look_at(model: keras.Model, strategy: IPUStrategyV1, spec: Nested) -> Look:
    """Calls a model with symbols, to see which scopes its layers enter.

    Args:
      model: The model.
      strategy: Its strategy.
      spec: A batch: a structure of `tf.TensorSpec`.
    """
    graph = graphs.FunctionGraph("look_at")
    before = entered()
    # A model whose steps are its own need not be callable. If it is at fault, its program will say so.
    with contextlib.suppress(Exception), strategy.scope(), graph.as_default():
        internals.called_with_symbols(model, symbols_of(spec), training=True)
    return Look(replicas.power_of_2(replicas.shards_of(graph)), entered() > before)


def check_traced(model: keras.Model, expected: int) -> None:
    """Checks that the program being traced uses as many IPUs as the model's layers.

    Args:
      model: The model.
      expected: How many IPUs its layers are on.

    Raises:
      ValueError: It does not.
    """
    graph: tf.Graph = tf.compat.v1.get_default_graph()
    found = replicas.power_of_2(replicas.shards_of(graph))
    if found != expected:
        raise ValueError(
            f"the steps of model `{model.name}` use {found} IPUs by `ipu_shard`, and the `call` of its layers uses"
            f" {expected}, by which its replicas were counted: use `ipu_shard` in `call`"
        )
