"""Reports on Keras models that were created in a strategy's scope: `model.ipu_report`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import pipelining
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._base.tensors import dtype_for, tf_variable
from tensorflow_ipu.analysis.machine import Kept, Recipe, advice_on_state
from tensorflow_ipu.analysis.machine.search import Variant
from tensorflow_ipu.analysis.models.search import Layout, ModelSearch
from tensorflow_ipu.analysis.pipelines.comparison import Pieces, joined
from tensorflow_ipu.analysis.pipelines.passes import costs_of_passes, passes_of
from tensorflow_ipu.feeds import IPUInfeedQueue
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.data import batches
from tensorflow_ipu.keras.data.elements import Elements
from tensorflow_ipu.keras.pipeline.places import symbols_of
from tensorflow_ipu.optimizers import update_memory
from tensorflow_ipu.optimizers.accumulation import accumulators_of, bytes_of

Asked = Iterator["Suggestion | NotAsked | Recipe"]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.analysis.machine import Machine, NotAsked, Report, Suggestion, System
    from tensorflow_ipu.keras.model.extension import Extension

# The most pieces of a model. Each piece is compiled separately, so models with more layers have pieces of several
# layers.
_MOST = 96


def pieces_of(
    extension: Extension, machine: System | Machine | str | None, described: Callable[[], Callable[[], None]]
) -> Pieces:
    """Returns the pieces of a model, from a trace as a pipeline on one IPU.

    The model's stages and options are restored.
    """
    stages, options = extension.stages, extension.options
    names = stages.leaf_names()
    if len(names) < 2:
        raise ValueError(
            f"model `{extension.model.name}` has {len(names)} layers, but a pipeline has at least 2 stages"
        )
    length = -(-len(names) // _MOST)
    of_layers = [number // length for number in range(len(names))]
    count = of_layers[-1] + 1
    steps = options.pipelining.gradient_accumulation_steps_per_replica
    overrides = {
        "gradient_accumulation_steps_per_replica": 1,
        "device_mapping": [0] * count,
        "pipeline_schedule": pipelining.PipelineSchedule.Sequential,
        "recomputation_mode": None,
        "forward_propagation_stages_poplar_options": None,
        "backward_propagation_stages_poplar_options": None,
    }
    with extension.with_options("pipelining", **overrides), stages.staged(of_layers):
        program: Any = described()
        with extension.strategy.scope(), extension.strategy.extended.as_replica:
            traced = program.get_concrete_function()
        (pipeline,) = pipelining.pipelines_of(traced)
        passes = passes_of(pipeline, machine)

    def assigned(of_pieces: Sequence[int]) -> list[Any]:
        with stages.staged([of_pieces[piece] for piece in of_layers]):
            return stages.get()

    def read(halved: bool, proportion: float | None) -> tuple[pipelining.StageCost, ...]:
        assert traced is not None  # This reference keeps the traced program alive.
        costs = costs_of_passes(pipeline, passes.again(halved=halved, proportion=proportion))
        return tuple(joined([cost] if isinstance(cost, pipelining.StageCost) else cost) for cost in costs)

    first_names = [names[of_layers.index(piece)] for piece in range(count)]
    return Pieces(tuple(first_names), read(False, None), steps, assigned, read)


# The names of modes for users, and their names in Keras.
_MODES = {"train": "train", "evaluate": "test", "predict": "predict"}
# For each mode, the modes whose last batch determines the shapes, best first. Batches of `predict` have no labels.
_SEEN = {
    "train": ("train", "test", "predict"),
    "evaluate": ("test", "train", "predict"),
    "predict": ("predict", "train", "test"),
}


def report_of_model(
    extension: Extension,
    batch_size: int | None,
    mode: str,
    machine: System | Machine | str | None,
    spec: Nested,
    trip_counts: Mapping[str, int] | None,
) -> Report:
    if mode not in _MODES:
        raise ValueError(f"`mode` must be one of {', '.join(f'`{name}`' for name in _MODES)}, but is {mode!r}")
    if batch_size is not None and (not is_int(batch_size) or batch_size < 1):
        raise ValueError(f"`batch_size` must be a positive integer, but is {batch_size!r}")
    model = extension.model
    if mode != "predict":
        internals.check_compiled(model, "ipu_report")
    batch = _batch(extension, batch_size, mode, spec)
    request = _Request(extension, mode, batch, machine, trip_counts)
    report = request.report()
    data = ", ".join(f"{leaf.dtype.name}{leaf.shape.as_list()}" for leaf in _parts(batch))
    assumption = f"a batch of a replica is {data}"
    if spec is None:
        source = "the model's last batch" if extension.seen else "the model's inputs and losses"
        assumption += f", as in {source}"
    return dataclasses.replace(report, assumptions=(*report.assumptions, assumption))


def pieces_of_model(extension: Extension, machine: System | Machine | str | None, batch_size: int | None) -> Pieces:
    """Returns the layers of a model as pieces, with their costs in training."""
    internals.check_compiled(extension.model, "ipu_pieces")
    request = _Request(extension, "train", _batch(extension, batch_size, "train", None), machine, None)
    return pieces_of(extension, machine, request.program)


@dataclasses.dataclass(frozen=True)
class _Request:
    """The arguments of a report. Its advice makes reports with other options from them."""

    extension: Extension
    mode: str
    batch: Nested
    machine: System | Machine | str | None
    trip_counts: Mapping[str, int] | None

    def program(self, scale: float = 1.0) -> Callable[[], None]:
        """Builds the model, and returns its program for a micro-batch of `scale` times the size."""
        extension, kind = self.extension, _MODES[self.mode]

        def zeros(leaf: tf.TensorSpec | None) -> tf.Tensor | None:
            if leaf is None:
                return None
            return tf.zeros([round((leaf.shape[0] or 0) * scale), *leaf.shape[1:]], leaf.dtype)

        elements = Elements(tf.data.Dataset.from_tensors(0).map(lambda _: tf.nest.map_structure(zeros, self.batch)))
        with extension.strategy.scope():
            if self.mode == "predict":
                internals.called_with_symbols(extension.model, symbols_of(elements.spec), training=False)
            else:
                internals.build_for_training(extension.model, elements.spec)
        options = extension.options.infeed.changed()
        infeed = IPUInfeedQueue(elements.dataset, device_ordinal=extension.ordinal, **options)
        # The steps of an execution, rounded up to whole weight updates.
        count = extension.steps_per_update if self.mode == "train" else 1
        steps = -(-extension.steps_per_execution // count) * count
        return extension.loop(kind).described(elements, infeed, extension.outfeed(kind), steps)

    def report(self) -> Report:
        report = self._report()
        return dataclasses.replace(report, asks=self._advising(report))

    def _report(self, scale: float = 1.0) -> Report:
        extension = self.extension
        with extension.calls.turn():
            program = self.program(scale)
            return extension.strategy.report(
                program, machine=self.machine, trip_counts=self.trip_counts, kept=self._kept()
            )

    def _rescaled(self, scale: float, steps: int) -> Report:
        """Returns the report for a micro-batch of `scale` times the size, and `steps` micro-batches an update."""
        if self.mode != "train":
            return self._report(scale)
        group = "pipelining" if self.extension.stages.is_pipelined else "accumulation"
        with self.extension.with_options(group, gradient_accumulation_steps_per_replica=steps):
            return self._report(scale)

    def _kept(self) -> Kept:
        """Returns the sizes of the optimizer's slots and of the gradients' sums, by the options of accumulation."""
        model, options = self.extension.model, self.extension.options.accumulation
        if self.mode != "train" or model.optimizer is None:
            return Kept()
        memory = update_memory(model.optimizer, ())
        state = memory.state_on_chip + memory.state_off_chip
        if options.offload_weight_update_variables and options.plan is not None:
            parts = self.extension.strategy.extended.ipus if options.replicated_optimizer_state_sharding else 1
            memory = dataclasses.replace(memory, state_on_chip=0, state_off_chip=-(-state // parts))
        sums = 0
        if options.plan is not None:
            weights = [tf_variable(weight) for weight in model.trainable_variables]
            sums = sum(
                (weight.shape.num_elements() or 0) * dtype_for(options.plan.dtype, weight).size for weight in weights
            )
        return Kept(
            state=state,
            on_chip=memory.state_on_chip,
            off_chip=memory.state_off_chip,
            accumulated=sum(map(bytes_of, accumulators_of(model.optimizer))),
            carried=sums,
            steps_per_update=self.extension.steps_per_update,
        )

    def _advising(self, original: Report) -> Callable[[Report, bool], Asked]:
        """Returns the function `Report.asks` for a model. It traces the model again if `retrace` is True."""
        extension, training = self.extension, self.mode == "train"
        steps = extension.steps_per_update if training else 1

        def advise(report: Report, retrace: bool) -> Asked:
            if original.asks is not None:
                for entry in original.asks(report, retrace):
                    # `ModelSearch` yields the recipe of a model, and the changes that only models can evaluate.
                    if not (isinstance(entry, Recipe) or getattr(entry, "of_models", False)):
                        yield entry
            if report.timeline is None:
                yield from advice_on_state(report, report.steps // steps)
            yield from self._search(report, steps).advice(retrace)

        return advise

    def _search(self, report: Report, steps: int) -> ModelSearch:
        extension = self.extension
        pipelined, options = extension.stages.is_pipelined, extension.options
        samples = _parts(self.batch)[0].shape[0]

        def traced(layout: Layout) -> Report:
            name = "pipelining" if layout.pipelined else "accumulation"
            staged = extension.stages.staged(layout.stages) if layout.stages else contextlib.nullcontext()
            with extension.with_options(name, **layout.options()), staged:
                traced_report = self._report(layout.variant.samples / samples)
            changes = layout.variant.reading()
            return traced_report.again(**changes) if traced_report.again and changes else traced_report

        return ModelSearch(
            report,
            Variant(
                samples=samples,
                steps=steps,
                stages=report.ipus_per_replica,
                recompute=pipelined and options.pipelining.recomputation_mode is not None,
            ),
            training=self.mode == "train",
            cut=lambda: pieces_of(extension, self.machine, self.program),
            rescaled=self._rescaled,
            traced=traced,
            pipelined=pipelined,
            kept=(options.pipelining if pipelined else options.accumulation).changed(),
        )


def _parts(batch: Nested) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]


def _batch(extension: Extension, batch_size: int | None, mode: str, spec: Nested) -> Nested:
    """Returns the static type of a batch: a structure of `tf.TensorSpec`, with None for missing data."""
    model = extension.model
    if spec is not None:
        batch: Any = batches.given_batch(spec, batch_size)
        return keras.utils.unpack_x_y_sample_weight(batch)[0] if mode == "predict" else batch
    kind = next((kind for kind in _SEEN[mode] if kind in extension.seen), None)
    if kind is None:
        inputs = batches.inputs_of(model, batch_size)
    else:
        batch = batches.seen_batch(extension.seen[kind], batch_size)
        if mode != "predict" and kind != "predict":
            return batch
        inputs = keras.utils.unpack_x_y_sample_weight(batch)[0]
    if mode == "predict":
        return inputs
    with extension.calls.turn(), extension.strategy.scope():
        labels = batches.labels_of(model, inputs)
    return (inputs,) if labels is None else (inputs, labels)
