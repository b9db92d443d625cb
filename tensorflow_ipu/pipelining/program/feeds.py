"""What goes in and out of a pipeline: elements of the infeed, and results for the outfeed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.tensors import dtype_for
from tensorflow_ipu._tensorflow import assembly, graphs
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue, elements
from tensorflow_ipu.pipelining.schedule.enums import Results
from tensorflow_ipu.pipelining.stages.part import GraphFunction
from tensorflow_ipu.pipelining.stages.tracing import flat_tensors

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeOf, Nested


class PipelineFeeds:
    """The queues of a pipeline.

    A queue may be enqueued to once in a program, and a pipeline does so wherever the last stage runs: so the enqueue is
    a function, which is traced once.
    """

    def __init__(
        self,
        infeed: IPUInfeedQueue | None,
        outfeed: IPUOutfeedQueue | None,
        result: Callable[[Sequence[tf.Tensor], tf.Tensor | None], Nested],
        result_specs: Nested,
        *,
        results: Results,
        accumulate_dtype: DTypeOf,
    ) -> None:
        """Takes the queues."""
        self._infeed = infeed
        self._result = result
        self._results = Results.EACH if outfeed is None else results
        specs = tf.nest.flatten(result_specs)
        if self.once:
            specs = [tf.TensorSpec(one.shape, dtype_for(accumulate_dtype, one)) for one in specs]
        self._specs = specs
        self._structure = result_specs
        self._enqueue = None if outfeed is None else self._enqueuing(outfeed)

    def _enqueuing(self, outfeed: IPUOutfeedQueue) -> GraphFunction:
        graph = assembly.CapturingGraph("pipeline_outfeed")

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
        return self._infeed is not None

    def result_specs(self) -> list[tf.TensorSpec]:
        """What is enqueued at a time, flat; nothing without an outfeed."""
        return [] if self._enqueue is None else self._specs

    def take(self) -> list[tf.Tensor]:
        """The next element, as the flat arguments of a stage."""
        if self._infeed is None:
            return []
        positional, named = elements.take(self._infeed)
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
