"""The calls from lower layers up to higher ones. Each function imports what it calls when it is called."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tensorflow_ipu._base import environment
from tensorflow_ipu._tensorflow import patches

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.graphs import FunctionGraph
    from tensorflow_ipu.strategy import IPUStrategyV1


def replaced_in_traces() -> list[tuple[patches.Patch, patches.Make]]:
    """Returns what operations and Keras replace while a program is traced; `programs/_program.py` has the rest."""
    from tensorflow_ipu.keras.model import rnn_steps, scope
    from tensorflow_ipu.ops import distributed_batch_norm, internal_ops, random_streams

    rows = [
        (patches.PRINT, internal_ops.printing),
        (patches.PRINTED_TEXT, internal_ops.formatting),
        (patches.RANDOM_OPERATIONS, random_streams.in_programs),
        (patches.GENERATOR_REPLICAS, random_streams.key_in_programs),
        (patches.FUSED_BATCH_NORMS, distributed_batch_norm.in_programs),
    ]
    # Layers of Keras 2 call TensorFlow's own generators and batch normalization.
    of_keras_2 = [(patches.KERAS_SELECTIONS, rnn_steps.of_keras_2)]
    of_keras_3 = [
        (patches.KERAS_MOMENTS, scope.sharing_moments),
        (patches.KERAS_SEEDS, scope.seeding_by_replica),
        (patches.KERAS_RECURRENT, rnn_steps.of_keras_3),
    ]
    return rows + (of_keras_2 if environment.uses_keras_2() else of_keras_3)


def mark_half_precision(graph: FunctionGraph, options: str) -> None:
    """Marks the outermost graph of a program that has the machine's numbers."""
    from tensorflow_ipu.ops import sites

    sites.mark_half_precision(graph, options)


def extending_models() -> contextlib.AbstractContextManager[None]:
    """Returns a block in which Keras models that are made in a strategy's scope are extended."""
    from tensorflow_ipu.keras.model import scope

    return scope.extending_models()


def follow_models(strategy: IPUStrategyV1) -> None:
    """Has Keras keep options of models in files, and explain what a model lacks, as long as a strategy lives."""
    from tensorflow_ipu.keras.model import scope

    scope.follow_models(strategy)
