"""The calls from lower layers to higher ones. Each function imports the higher module when it is called."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tensorflow_ipu._base import environment
from tensorflow_ipu._tensorflow import patches

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.graphs import FunctionGraph
    from tensorflow_ipu.strategy import IPUStrategyV1


def replaced_in_traces() -> list[tuple[patches.Patch, patches.Make]]:
    """Returns the patches of operations and Keras that apply while a program is traced.

    `programs/_program.py` has all other patches of a trace.
    """
    from tensorflow_ipu.keras.model import rnn_steps, scope
    from tensorflow_ipu.ops import distributed_batch_norm, internal_ops, random_streams

    rows = [
        (patches.PRINT, internal_ops.printing),
        (patches.PRINTED_TEXT, internal_ops.formatting),
        (patches.RANDOM_OPERATIONS, random_streams.in_programs),
        (patches.GENERATOR_REPLICAS, random_streams.key_in_programs),
        (patches.FUSED_BATCH_NORMS, distributed_batch_norm.in_programs),
    ]
    # Keras 2 needs fewer patches: its layers call TensorFlow's own generators and batch normalization.
    of_keras_2 = [(patches.KERAS_SELECTIONS, rnn_steps.of_keras_2)]
    of_keras_3 = [
        (patches.KERAS_MOMENTS, scope.sharing_moments),
        (patches.KERAS_SEEDS, scope.seeding_by_replica),
        (patches.KERAS_RECURRENT, rnn_steps.of_keras_3),
    ]
    return rows + (of_keras_2 if environment.uses_keras_2() else of_keras_3)


def mark_half_precision(graph: FunctionGraph, options: str) -> None:
    """Adds the half-precision marker to the outermost graph of a program that uses the machine's arithmetic."""
    from tensorflow_ipu.ops import sites

    sites.mark_half_precision(graph, options)


def extending_models() -> contextlib.AbstractContextManager[None]:
    """Returns the context in which a strategy's scope extends the Keras models created in it."""
    from tensorflow_ipu.keras.model import scope

    return scope.extending_models()


def follow_models(strategy: IPUStrategyV1) -> None:
    """Patches Keras while a strategy exists: model files keep IPU options, and errors explain what a model lacks."""
    from tensorflow_ipu.keras.model import scope

    scope.follow_models(strategy)
