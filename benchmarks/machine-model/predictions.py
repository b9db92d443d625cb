"""Predicts the times of matrix products and of pipelines by the machine model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import models
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining, programs
from tensorflow_ipu.machine import Report, System, report_of, system_of


@dataclass(frozen=True)
class Parts:
    """A prediction, with its time split into parts.

    Attributes:
      amount: The number of samples or operations in this time.
      compute: Seconds of arithmetic on the chip.
      moves: Seconds of exchange and synchronisation on the chip.
      rest: Seconds of links, streaming memory and host.
      memory: The smallest estimate for the fullest IPU, as a share of its memory.
      verdict: The verdict whether the program fits.
    """

    amount: float
    compute: float
    moves: float
    rest: float
    memory: float
    verdict: str

    def rate(self, compute: float = 1.0, moves: float = 1.0) -> float:
        """Returns the amount per second, if arithmetic and moves take `compute` and `moves` times the predicted time."""
        return self.amount / (compute * self.compute + moves * self.moves + self.rest)


@dataclass(frozen=True)
class Settings:
    """The published settings of a model.

    Attributes:
      ipus: The number of IPUs of a replica.
      micro_batch: The number of samples of a micro-batch.
      proportions: `availableMemoryProportion` of each stage.
      offloaded: True if the optimizer's slots are in streaming memory, divided among the replicas.
      sequential: True if all stages are on one IPU and run in turn.
      adaptive: True for an optimizer with two moments, as LAMB has; False for momentum.
      per_sample: The number of published samples in a sample of the program, such as 2 sequences in a pack.
    """

    ipus: int
    micro_batch: int
    proportions: Sequence[float]
    offloaded: bool = False
    sequential: bool = False
    adaptive: bool = False
    per_sample: float = 1.0


def _hlo(function: Callable[..., Any], *arguments: tf.Tensor) -> bytes:
    return tf.function(function, jit_compile=True).experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")


def best_product(sizes: Sequence[int], dtype: tf.DType, machine: str) -> Parts:
    """Returns the fastest product of square matrices of the given sizes, in TFLOP/s."""
    products = []
    for size in sizes:
        report = report_of(_hlo(lambda a, b: a @ b, *[tf.zeros([size, size], dtype)] * 2), system_of(machine))
        products.append(_parts(report, 2 * size**3 / 1e12, report.seconds, 0.0, report.operations))
    return max(products, key=Parts.rate)


class Trained:
    """A pipeline that trains a model. Its program is traced once, and predicts the times of any number of replicas.

    Attributes:
      report: The report for a Bow Pod16 and two replicas.
    """

    def __init__(self, make: Callable[[], models.Staged], settings: Settings, accumulated: int) -> None:
        """Traces the pipeline, and reports the time of each pass of each stage.

        Args:
          make: Creates the model.
          settings: The published settings.
          accumulated: The number of micro-batches per update.
        """
        config = ipu.IPUConfig()
        config.auto_select_ipus = 2 * settings.ipus  # Two replicas, so that the program has an all-reduce.
        config.configure_ipu_system()
        self._settings, self._accumulated = settings, accumulated
        strategy = ipu.IPUStrategy()
        self._device = strategy.extended.ipu_device
        with strategy.scope():
            staged = make()
            infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(staged.element).repeat())
            outfeed = ipu.IPUOutfeedQueue()
            train = tf.compat.v1.train
            optimizer = train.AdamOptimizer(0.01) if settings.adaptive else train.MomentumOptimizer(0.01, 0.9)
        options = [_options(proportion) for proportion in settings.proportions]
        schedules = pipelining.PipelineSchedule

        @tf.function
        def program() -> None:
            pipelining.pipeline(
                list(staged.stages),
                accumulated,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss: pipelining.OptimizerFunctionOutput(optimizer, loss),
                device_mapping=list(staged.mapping),
                pipeline_schedule=schedules.Sequential if settings.sequential else schedules.Grouped,
                forward_propagation_stages_poplar_options=options,
                backward_propagation_stages_poplar_options=options,
                offload_weight_update_variables=settings.offloaded,
                replicated_optimizer_state_sharding=settings.offloaded,
            )

        self._references = program, staged  # The pipeline's program lives as long as its function.
        self.report = strategy.report(program, machine="Bow Pod16")
        self._pipeline = pipelining.last_pipeline()

    def predict(self, machine: str, replica_count: int, accumulated: int) -> Parts:
        """Predicts the time of an update with another number of replicas and micro-batches.

        The passes of the report are scaled by the number of micro-batches. The weight update, whose all-reduce depends on
        the number of replicas, is predicted again for the machine.

        Args:
          machine: The name of a system.
          replica_count: The number of replicas.
          accumulated: The number of micro-batches per update.
        """
        report = self.report
        assert report.timeline is not None
        update_rows = [row for row in report.operations if row.part == "update"]
        update = self._update(system_of(machine), replica_count)
        batches = accumulated / self._accumulated
        streamed = [row for row in report.operations if row.kind == "streaming" and row.part.endswith(" update")]
        loading = max(sum(row.links for row in streamed if row.ipu == ipu) for ipu in range(report.ipus_per_replica))
        update_seconds = loading + sum(row.seconds for row in update_rows)
        seconds = loading + batches * (report.timeline.seconds - update_seconds)
        samples = self._settings.micro_batch * accumulated * replica_count * self._settings.per_sample
        busiest = max(
            range(report.ipus_per_replica), key=lambda ipu: sum(r.seconds for r in report.operations if r.ipu == ipu)
        )
        rows = [row for row in report.operations if row.ipu == busiest and row.part]
        host = 0.0 if report.overlaps_host else batches * report.part_seconds("host")
        links = update.part_seconds("links")
        return _parts(report, samples, seconds + update.seconds - links, host + links, rows)

    def _update(self, system: System, replica_count: int) -> Report:
        weight_update = self._pipeline.parts().weight_update
        assert weight_update is not None
        function, specs = weight_update.alone()
        with tf.device(self._device):
            concrete = tf.function(function, autograph=False, jit_compile=True).get_concrete_function(*specs)
            zeros = [tf.zeros(spec.shape, spec.dtype) for spec in specs]
        return report_of(programs.hlo(concrete, zeros, self._device), system, replicas=replica_count)


def _options(proportion: float) -> pipelining.PipelineStageOptions:
    named = {"availableMemoryProportion": str(proportion)}
    return pipelining.PipelineStageOptions(convolution_options=named, matmul_options=named)


def _parts(report: Report, amount: float, chip: float, rest: float, rows: Sequence[Any]) -> Parts:
    """Returns a prediction whose time on the chip is split in the proportions of the operations in `rows`."""
    compute, moves, links = (
        sum(sum(getattr(row, name) for name in names) for row in rows)
        for names in (("compute",), ("exchange", "sync"), ("links",))
    )
    total = compute + moves + links
    memory = report.memory
    return Parts(
        amount=amount,
        compute=chip * compute / total,
        moves=chip * moves / total,
        rest=rest + chip * links / total,
        memory=memory.low / memory.capacity,
        verdict=memory.verdict,
    )
