"""The queues of a pipeline: what its first stage takes, and what is enqueued of its last stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.tensors import dtype_for
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.feeds.infeed import take
from tensorflow_ipu.pipelining.schedule.enums import Results
from tensorflow_ipu.pipelining.stages.part import GraphFunction
from tensorflow_ipu.pipelining.stages.tracing import flat_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.feeds import IPUOutfeedQueue
    from tensorflow_ipu.pipelining.options import Arguments
    from tensorflow_ipu.pipelining.program.model import Model


class PipelineFeeds:
    """The queues of a pipeline, with the enqueue as a function, since a program may have only one of a queue."""

    def __init__(self, arguments: Arguments, model: Model) -> None:
        """Takes the queues and the last stage's outputs, and checks that they fit."""
        outputs = model.outputs()
        flat = flat_tensors(outputs)
        if flat and arguments.outfeed_queue is None:
            raise ValueError(
                f"The last computational stage has tensor outputs: {', '.join(map(str, flat))}, but no outfeed_queue has been"
                " provided. Give one, or return nothing"
            )
        if arguments.outfeed_mask is not None and len(arguments.outfeed_mask) != len(flat):
            raise ValueError(
                f"The last computational stage has {len(flat)} outputs, but the `outfeed_mask` has"
                f" {len(arguments.outfeed_mask)} items; give one for each output"
            )
        self._masked = arguments.outfeed_mask or (False,) * len(flat)
        self._arguments = arguments
        self._outputs = outputs
        self._structure = self._result(flat, model.loss_spec())
        specs = tf.nest.flatten(self._structure)
        outfeed = arguments.outfeed_queue if flat_tensors(self._structure) else None
        self._results = Results.EACH if outfeed is None else arguments.results
        if self.once:
            specs = [tf.TensorSpec(one.shape, dtype_for(arguments.accumulate_outfeed_dtype, one)) for one in specs]
        self._specs = specs
        self._enqueue = None if outfeed is None else self._enqueuing(outfeed)

    def _result(self, values: Sequence[tf.Tensor], loss: tf.Tensor | tf.TensorSpec | None) -> Nested:
        """What is enqueued of the last stage's outputs, and the loss."""
        if self._arguments.outfeed_loss:
            return loss
        if self._arguments.training:
            return [value for value, left_out in zip(values, self._masked, strict=True) if not left_out]
        remaining = iter(values)
        with_nones = [None if one is None else next(remaining) for one in tf.nest.flatten(self._outputs)]
        packed = tf.nest.pack_sequence_as(self._outputs, with_nones)
        if self._arguments.results is Results.SUM and not tf.nest.is_nested(packed):
            return flat_tensors(packed)  # A sum alone comes in a list, as several do.
        return list(packed) if isinstance(packed, tuple) else packed

    def _enqueuing(self, outfeed: IPUOutfeedQueue) -> GraphFunction:
        graph = graphs.FunctionGraph("pipeline_outfeed")

        def enqueue(*tensors: tf.Tensor) -> None:
            outfeed.enqueue(tf.nest.pack_sequence_as(self._structure, tensors))

        graphs.trace_into(graph, enqueue, self._specs)
        return GraphFunction(graph, graph.inputs[: len(self._specs)], [])

    @property
    def once(self) -> bool:
        """Whether a pass enqueues once, at its end."""
        return self._results is not Results.EACH

    @property
    def takes(self) -> bool:
        """Whether elements come from an infeed."""
        return self._arguments.infeed is not None

    def result_specs(self) -> list[tf.TensorSpec]:
        """What is enqueued at a time, flat; nothing without an outfeed."""
        return [] if self._enqueue is None else self._specs

    def take(self) -> list[tf.Tensor]:
        """The next element, as the flat arguments of a stage."""
        if self._arguments.infeed is None:
            return []
        positional, named = take(self._arguments.infeed)
        return tf.nest.flatten((positional, {name: named[name] for name in sorted(named)}))

    def give(self, outputs: Sequence[tf.Tensor], loss: tf.Tensor | None, sums: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Enqueues the result of a micro-batch, or keeps it for the end of the pass."""
        if self._enqueue is None:
            return list(sums)
        tensors = flat_tensors(self._result(outputs, loss))
        if self.once:
            kept = [tf.cast(one, total.dtype) for total, one in zip(sums, tensors, strict=True)]
            if self._results is Results.LAST:
                return kept
            return [total + one for total, one in zip(sums, kept, strict=True)]
        self._enqueue(tensors)
        return []

    def empty_sums(self) -> list[tf.Tensor]:
        """The sums before the first micro-batch; none where each result is enqueued."""
        return [tf.zeros(one.shape, one.dtype) for one in self._specs] if self.once else []

    def finish(self, sums: Sequence[tf.Tensor]) -> None:
        """Ends a pass: enqueues the sums, if there are any."""
        if self.once and self._enqueue is not None:
            self._enqueue(sums)
