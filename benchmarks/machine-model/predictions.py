"""Asks the machine model what a program would take: products, and models as the pipelines that they ran as."""

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
    """A prediction, by what its time goes to.

    Attributes:
      amount: What is done in this time: samples, or operations.
      compute: Seconds of arithmetic on the chip.
      moves: Seconds of exchange on the chip and of its synchronisation.
      rest: Seconds of links, memory beside the chip, and host.
      memory: The least that the fullest IPU needs, as a share of what it has.
      verdict: Whether that fits.
    """

    amount: float
    compute: float
    moves: float
    rest: float
    memory: float
    verdict: str

    def rate(self, compute: float = 1.0, moves: float = 1.0) -> float:
        """What is done in a second, if arithmetic and moves take so many times as long as predicted."""
        return self.amount / (compute * self.compute + moves * self.moves + self.rest)


@dataclass(frozen=True)
class Settings:
    """How a model ran.

    Attributes:
      ipus: Of a replica.
      micro_batch: Samples.
      proportions: `availableMemoryProportion` of each stage.
      offloaded: Whether the optimizer's state is beside the chip, divided among the replicas.
      sequential: Whether the stages take turns, which all are on one IPU.
      adaptive: Whether the optimizer keeps two moments, as LAMB does, or momentum alone.
      per_sample: What counts as samples in a sample: the sequences of a pack.
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
    """The fastest among products of square matrices of some sizes, in TFLOP/s."""
    found = []
    for size in sizes:
        report = report_of(_hlo(lambda a, b: a @ b, *[tf.zeros([size, size], dtype)] * 2), system_of(machine))
        found.append(_parts(report, 2 * size**3 / 1e12, report.seconds, 0.0, report.operations))
    return max(found, key=Parts.rate)


class Trained:
    """A model as a pipeline that trains it, whose program is traced once for any number of replicas.

    Attributes:
      report: What is predicted of it on a Bow Pod16, with two replicas.
    """

    def __init__(self, make: Callable[[], models.Staged], settings: Settings, accumulated: int) -> None:
        """Traces it, and reads what each pass of each stage takes.

        Args:
          make: Makes the model.
          settings: How it ran.
          accumulated: Micro-batches an update.
        """
        config = ipu.IPUConfig()
        config.auto_select_ipus = 2 * settings.ipus  # Two replicas: the program has its all-reduce.
        config.configure_ipu_system()
        self._settings, self._accumulated = settings, accumulated
        strategy = ipu.IPUStrategy()
        self._device = strategy.extended.ipu_device
        with strategy.scope():
            staged = make()
            infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(staged.element).repeat())
            outfeed = ipu.IPUOutfeedQueue()
            made = tf.compat.v1.train
            optimizer = made.AdamOptimizer(0.01) if settings.adaptive else made.MomentumOptimizer(0.01, 0.9)
        options = [_options(each) for each in settings.proportions]
        schedules = pipelining.PipelineSchedule

        @tf.function
        def train() -> None:
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

        self._kept = train, staged  # The pipeline's program lives as long as its function.
        self.report = strategy.report(train, machine="Bow Pod16")
        self._pipeline = pipelining.last_pipeline()

    def predict(self, machine: str, replica_count: int, accumulated: int) -> Parts:
        """What it does in a second.

        Args:
          machine: The name of a system.
          replica_count: Replicas.
          accumulated: Micro-batches an update.
        """
        report = self.report
        assert report.timeline is not None
        own = [row for row in report.operations if row.part == "update"]
        update = self._update(system_of(machine), replica_count)
        batches = accumulated / self._accumulated
        streamed = [row for row in report.operations if row.kind == "streaming" and row.part.endswith(" update")]
        brought = max(sum(row.links for row in streamed if row.ipu == ipu) for ipu in range(report.ipus_per_replica))
        own_seconds = brought + sum(row.seconds for row in own)
        seconds = brought + batches * (report.timeline.seconds - own_seconds)
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
            zeros = [tf.zeros(one.shape, one.dtype) for one in specs]
        return report_of(programs.hlo(concrete, zeros, self._device), system, replicas=replica_count)


def _options(proportion: float) -> pipelining.PipelineStageOptions:
    named = {"availableMemoryProportion": str(proportion)}
    return pipelining.PipelineStageOptions(convolution_options=named, matmul_options=named)


def _parts(report: Report, amount: float, chip: float, rest: float, rows: Sequence[Any]) -> Parts:
    """The time on the chip, divided as that of the rows of the busiest IPU is."""
    compute, moves, links = (
        sum(sum(getattr(row, name) for name in names) for row in rows)
        for names in (("compute",), ("exchange", "sync"), ("links",))
    )
    whole = compute + moves + links
    memory = report.memory
    return Parts(
        amount=amount,
        compute=chip * compute / whole,
        moves=chip * moves / whole,
        rest=rest + chip * links / whole,
        memory=memory.low / memory.capacity,
        verdict=memory.verdict,
    )
