"""Marks programs whose numbers are to be those of the machine, as the configuration or a scope asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.ops import sites

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.graphs import FunctionGraph


def _mark(graph: FunctionGraph, options: str) -> None:
    """Puts the marker into the outermost graph of a program; the pass over its HLO finds it there."""
    with graph.as_default(), tf.control_dependencies(None), tf.name_scope("half_precision"):
        marker = ops.ipu_half_precision(sites.random("IPUConfig.floating_point_behaviour"), options=options)
    graph.control_outputs.append(marker)


replicas.set_marker(_mark)
