"""From a program that a strategy has traced to a report of it: read as one program, or as the pipeline that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensorflow_ipu import machine, pipelining, replicas
from tensorflow_ipu._kept_state import kept_by, prefetch_of

if TYPE_CHECKING:
    import tensorflow as tf

    from tensorflow_ipu._tensorflow.functions import ConcreteFunction
    from tensorflow_ipu._types import Nested


class Called(NamedTuple):
    """A program and what it was traced for.

    Attributes:
      function: What the user wrote.
      arguments: What it is called with.
      program: What it was traced to.
      inputs: Its flat inputs.
      device: The full name of its device.
      ipus: How many IPUs that has.
    """

    function: Callable[..., Nested]
    arguments: Sequence[Nested]
    program: ConcreteFunction
    inputs: Sequence[tf.Tensor]
    device: str
    ipus: int


def report_of(
    called: Called,
    setting: machine.Setting,
    trip_counts: Mapping[str, int] | None,
    kept: machine.Kept | None,
) -> machine.Report:
    """Predicts what a machine makes of a program."""
    program = called.program
    name = getattr(called.function, "__name__", program.name)
    per_replica = replicas.ipus_of_replica(program)
    pipelines = pipelining.pipelines_of(program)
    if len(pipelines) == 1:
        return pipelining.report_of_pipeline(
            pipelines[0],
            setting.system,
            program=name,
            replicas=max(1, called.ipus // per_replica),
            prefetch=prefetch_of(called.function, called.arguments),
            trip_counts=trip_counts,
        )
    if pipelines:
        raise NotImplementedError(
            f"the program has {len(pipelines)} pipelines: a report is of programs with one pipeline, or with none"
        )
    report = machine.report_of(
        replicas.hlo(program, called.inputs, called.device),
        setting.system,
        program=name,
        replicas=max(1, called.ipus // per_replica),
        proportion=setting.proportion,
        trip_counts=trip_counts,
        lines=replicas.user_lines(program),
        prefetch=prefetch_of(called.function, called.arguments),
        ipus=per_replica,
        shards=replicas.placed_by_name(program),
    )
    if per_replica > 1:
        return report
    if kept is None:
        kept = kept_by(called.function, called.arguments, program.captured_inputs, called.ipus)
    return machine.told_apart(report, kept)
