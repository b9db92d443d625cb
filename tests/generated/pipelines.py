"""Creates a random pipeline from a seed: the source text of its stages, and the arguments of `pipeline`."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import tensorflow as tf
from writing import Expression, Name, Writer

from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import PhasedExecution, PipelineSchedule, RecomputationMode

# The shapes of the inputs of each stage: a batch, and an integer without a gradient.
X, N = (3, 4), ()
_WEIGHTS = {"w": (4, 4), "b": (4,)}
# Options that do not change results, but may be rejected.
_OFFLOADING = (
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "offload_weights",
)
_AUTO, _THEN, _WITHIN = RecomputationMode
_MODES = {
    PipelineSchedule.Grouped: (_AUTO, _THEN, _WITHIN),
    PipelineSchedule.Interleaved: (_AUTO, _THEN),
    PipelineSchedule.Sequential: (_AUTO, _WITHIN),
}
OPTIMIZERS = {
    "SGD": lambda: tf.keras.optimizers.SGD(0.05),
    "momentum": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam": lambda: tf.keras.optimizers.Adam(0.01),
    "old SGD": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.05),
    "old Adam": lambda: tf.compat.v1.train.AdamOptimizer(0.01),
}


@dataclasses.dataclass
class Pipeline:
    """A pipeline, its data and its number of runs.

    Attributes:
      source: A function `stages` that takes the variables by name and returns a list of stages. A stage is a function
        or a list of functions.
      variables: The initial values of the variables by name.
      ipus: The number of IPUs of the device.
      count: The number of micro-batches of a pass, before batch serialization splits them.
      options: Further arguments of `pipeline`.
      optimizer: A key of `OPTIMIZERS`, or None for inference.
      replicas: The number of replicas.
      runs: The number of runs of the program.
    """

    source: str
    variables: dict[str, np.ndarray]
    ipus: int
    count: int
    options: dict[str, Any]
    optimizer: str | None
    replicas: int
    runs: int

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of one pass on one replica."""
        return self.count * self.options.get("batch_serialization_iterations", 1)

    @property
    def passes(self) -> int:
        """The number of passes in all runs."""
        return self.runs * self.options.get("repeat_count", 1)

    @property
    def is_mean(self) -> bool:
        """True if gradients are averaged over micro-batches."""
        return self.options.get("reduction_method", "sum") != "sum"

    def stages(self, variables: dict[str, tf.Variable]) -> list[Any]:
        """Returns the stages that use these variables."""
        space: dict[str, Any] = {"tf": tf}
        exec(compile(self.source, "<pipeline>", "exec"), space)
        return space["stages"](**variables)

    def elements(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns all elements of the infeed, for all replicas."""
        numbers = np.random.default_rng(seed)
        total = self.micro_batches * self.passes * self.replicas
        return numbers.uniform(-2, 2, (total, *X)).astype(np.float32), numbers.integers(0, 9, total, np.int32)


def make(seed: int) -> Pipeline:
    """Creates the pipeline of a seed."""
    choose = random.Random(seed)
    count_of_stages = choose.randint(2, 4)
    widths = [choose.choice([1, 1, 1, 1, 2]) for _ in range(count_of_stages)]
    source, variables = _stages(seed, widths, choose)
    schedule = choose.choice([*PipelineSchedule, *PipelineSchedule, *PipelineSchedule, *PhasedExecution])
    training, any_options = choose.random() < 0.8, choose.random() < 0.1  # With any options, they may be incompatible.
    options: dict[str, Any] = {"pipeline_schedule": schedule}
    mapping = _mapping(widths, choose) if any_options or isinstance(schedule, PipelineSchedule) else None
    if mapping is not None:
        options["device_mapping"] = mapping
    serialized = schedule is PipelineSchedule.Sequential and choose.random() < 0.4 and (any_options or max(widths) == 1)
    if serialized:
        options |= {"batch_serialization_iterations": choose.randint(2, 3)}
        options.pop("device_mapping", None)
        mapping = [0] * count_of_stages
    if isinstance(schedule, PipelineSchedule):
        if training or any_options:
            modes = tuple(RecomputationMode) if any_options else _MODES[schedule]
            options["recomputation_mode"] = choose.choice([None, *modes])
        multiple = pipelining.overlap_length(schedule, mapping or _one_after_the_other(widths), training)
    else:
        multiple = 1
    used = 1 + max(ipu for item in mapping or _one_after_the_other(widths) for ipu in _listed(item))
    if isinstance(schedule, PhasedExecution) and mapping is None:
        used = max(max(groups) for groups in schedule.default_mapping(widths)) + 1
    replicas = choose.choice([1, 1, 2])
    ipus = 1 << (used - 1).bit_length()  # The number of IPUs of a replica is a power of two.
    options["repeat_count"] = choose.randint(1, 2)
    options["accumulate_outfeed"] = choose.random() < 0.2
    if training:
        methods = ["sum"] if serialized and not any_options else ["sum", "mean", "running_mean"]
        options["reduction_method"] = choose.choice(methods)
        options["gradient_accumulation_dtype"] = choose.choice([None, None, tf.float32])
        options["outfeed_loss"] = choose.random() < 0.3
        options |= {name: True for name in _OFFLOADING if choose.random() < 0.2}
        if not any_options and "replicated_optimizer_state_sharding" in options:
            options["offload_weight_update_variables"] = True
    optimizer = choose.choice(list(OPTIMIZERS)) if training else None
    count = multiple * choose.randint(1, 2)
    return Pipeline(source, variables, ipus * replicas, count, options, optimizer, replicas, choose.randint(1, 2))


def _listed(item: int | list[int]) -> list[int]:
    return item if isinstance(item, list) else [item]


def _one_after_the_other(widths: list[int]) -> list[int | list[int]]:
    first, mapping = 0, []
    for width in widths:
        mapping.append(list(range(first, first + width)) if width > 1 else first)
        first += width
    return mapping


def _mapping(widths: list[int], choose: random.Random) -> list[int | list[int]] | None:
    kind = choose.random()
    if kind < 0.4:
        return None
    mapping: list[int | list[int]] = []
    if kind < 0.7 and max(widths) == 1:
        mapping += [0] * len(widths)
        return mapping
    order = list(range(sum(widths)))
    choose.shuffle(order)
    for width in widths:
        taken, order = order[:width], order[width:]
        mapping.append(taken if width > 1 else taken[0])
    if kind > 0.9 and widths[0] == widths[-1] == 1:  # Which may not fit the schedule, or a stage's variables.
        mapping[-1] = mapping[0]
    return mapping


def _stages(seed: int, widths: list[int], choose: random.Random) -> tuple[str, dict[str, np.ndarray]]:
    numbers = np.random.default_rng(seed)
    variables: dict[str, np.ndarray] = {}
    lines, names, batches = [], [], ["x"]
    for stage, width in enumerate(widths):
        last, parts = stage == len(widths) - 1, []
        for part in range(width):
            shapes = {f"{kind}{stage}{part}": shape for kind, shape in _WEIGHTS.items()}
            variables |= {name: numbers.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
            text = _layer(seed * 97 + stage * 7 + part, batches, shapes)
            name = f"stage{stage}{part}"
            lines.append(f"    def {name}({', '.join([*batches, 'n'])}):")
            if last:
                loss = f"0.1 * tf.reduce_sum(tf.tanh({text})) + {part}.0"
                results = [loss, "n"] if part == 0 and choose.random() < 0.5 else [loss]
            else:
                results = [f"tf.tanh({text})"]
                results += ["n"] if part == width - 1 else []
            lines.append(f"        return {', '.join(results)}")
            parts.append(name)
        names.append(parts[0] if width == 1 else f"[{', '.join(parts)}]")
        batches = ["x"] if width == 1 else ["x", "z"]
    source = [f"def stages({', '.join(variables)}):", *lines, f"    return [{', '.join(names)}]", ""]
    return "\n".join(source), variables


def _layer(seed: int, batches: list[str], weights: dict[str, tuple[int, ...]]) -> str:
    """Writes the computation of a stage: an expression of all its inputs with continuous gradients."""
    writer = Writer(seed)
    tensors = {name: Name("float32", X, Expression(name, 2.0, rough=True)) for name in batches}
    tensors |= {
        name: Name("float32", shape, Expression(f"tf.identity({name})", 2.0, rough=True))
        for name, shape in weights.items()
    }
    writer.names = {**tensors, "n": Name("int32", N, Expression("n", 9.0))}
    with writer.smooth():
        text = writer.expression("float32", X, 2).text
    matrix, bias = weights
    return f"tf.matmul({' + '.join(batches)}, {matrix}) + {bias} + 0.3 * ({text})"
