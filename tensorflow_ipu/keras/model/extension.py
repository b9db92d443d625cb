"""The extension of a Keras model that was made in a strategy's scope: options, pipeline stages and programs."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tensorflow_ipu import pipelining, programs
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.config import _state
from tensorflow_ipu.feeds import IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.data import fed_data
from tensorflow_ipu.keras.model import files
from tensorflow_ipu.keras.model.loop import Call, Calls, Loop
from tensorflow_ipu.keras.optimizers.accumulated_step import capturing
from tensorflow_ipu.keras.optimizers.wrapping import chain
from tensorflow_ipu.keras.options.options import Options, print_text
from tensorflow_ipu.keras.pipeline.graph import PipelinedModel, StageAssignment
from tensorflow_ipu.keras.pipeline.places import symbols_of
from tensorflow_ipu.keras.pipeline.stages import entered

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.hosts import Cluster
    from tensorflow_ipu.keras._keras3 import DataAdapter
    from tensorflow_ipu.strategy import IPUStrategyV1


def fitting(ipus: int, needed: int, model: keras.Model, reason: str) -> int:
    """Returns the number of replicas that fill `ipus` IPUs if each needs `needed`. `reason` is a part of the error."""
    if ipus % needed:
        raise ValueError(
            f"Current device has {ipus} IPUs attached, however the current model `{model.name}` requires a multiple of"
            f" {needed} IPUs: {reason}. Configure such a number with `IPUConfig.auto_select_ipus`, and call"
            " `configure_ipu_system()`"
        )
    return ipus // needed


class ShardingProbe(NamedTuple):
    """The number of IPUs that the layers of a model use by `ipu_shard`, and whether they enter stage scopes."""

    ipus: int
    has_stages: bool


MODES = ("train", "test", "predict")


def set_class(model: keras.Model, kind: type) -> None:
    """Sets the class of a model, bypassing the property `__class__` of models of the scope."""
    vars(object)["__class__"].__set__(model, kind)


class Extension:
    """The additions to a Keras model of a scope: options, pipeline stages and the functions that run its steps."""

    def __init__(self, model: keras.Model, strategy: IPUStrategyV1) -> None:
        self.model = model
        self.strategy = strategy
        self.options = Options()
        self.stages = StageAssignment(model, strategy)
        # The last batch of each mode: a structure of `tf.TensorSpec`, with None for missing data.
        self.seen: dict[str, Nested] = {}
        self.calls = Calls(model)
        # Used in turns only. Loops and probes depend on the model and its options. `_version` counts how often `reset` ran.
        self._loops: dict[str, Loop] = {}
        self._probes: dict[str, ShardingProbe] = {}  # By the spec of a batch.
        self._version = 0
        self._functions = {mode: functools.partial(self._execute, mode) for mode in MODES}

    def __deepcopy__(self, memo: dict[int, object]) -> Extension:
        """Returns the extension of a copy of the model. Keras 2 makes copies of models that are not built."""
        model = copy.deepcopy(self.model, memo)
        set_class(model, type(self.model))
        extension = Extension(model, self.strategy)
        extension.options = copy.deepcopy(self.options, memo)
        return extension

    @property
    def ordinal(self) -> int:
        return self.strategy.extended.ordinal

    @property
    def cluster(self) -> Cluster | None:
        """The workers that train the model together, or None if this process is the only one."""
        return self.strategy.extended.cluster if self.strategy.extended.workers > 1 else None

    def replicas_for(self, spec: Nested) -> int:
        """Returns the number of replicas that run a program of the model on batches of this spec."""
        ipus = _state.ipus_of_device(self.ordinal)
        if not self.stages.has_graph and self._probe(spec).has_stages:
            self.stages.trace(symbols_of(spec))
        if self.stages.is_pipelined:
            mapping = self.options.pipelining.device_mapping or self._default_mapping(self.stages.check())
            needed = programs.power_of_2(max(0, *mapping) + 1)
            return fitting(ipus, needed, self.model, f"its pipeline stages are on IPUs {mapping}")
        needed = self._probe(spec).ipus if ipus > 1 else 1
        return fitting(ipus, needed, self.model, f"its `ipu_shard` scopes name {needed}")

    def check_traced(self, spec: Nested) -> None:
        """Raises an error if the traced program uses another number of IPUs than `_probe` found."""
        if _state.ipus_of_device(self.ordinal) == 1:
            return
        graph: tf.Graph = tf.compat.v1.get_default_graph()
        used, expected = programs.power_of_2(programs.shards_of(graph)), self._probe(spec).ipus
        if used != expected:
            raise ValueError(
                f"the steps of model `{self.model.name}` use {used} IPUs by `ipu_shard`, but the `call` of its layers uses"
                f" {expected}, from which the number of replicas follows: use `ipu_shard` in `call`"
            )

    def _probe(self, spec: Nested) -> ShardingProbe:
        """Calls the model with symbols, and returns the IPUs and stages that its layers use."""
        key = repr(spec)
        if key not in self._probes:
            graph = graphs.FunctionGraph("sharding_probe")
            entered_before = entered()
            # A model that overrides `train_step` may have no `call`. Tracing the program raises other errors again.
            with contextlib.suppress(Exception), self.strategy.scope(), graph.as_default():
                internals.called_with_symbols(self.model, symbols_of(spec), training=True)
            ipus = programs.power_of_2(programs.shards_of(graph))
            self._probes[key] = ShardingProbe(ipus, entered() > entered_before)
        return self._probes[key]

    def _default_mapping(self, stages: int) -> list[int]:
        schedule = self.options.pipelining.pipeline_schedule
        if isinstance(schedule, pipelining.PhasedExecution):
            return [ipu for (ipu,) in schedule.default_mapping([1] * stages)]
        return list(range(stages))

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Runs the block in a turn, to change options or stages, and drops the programs at its end."""
        with self.calls.turn():
            yield
            self.reset()

    def reset(self) -> None:
        """Drops the programs. The next call makes new ones by the options at that time."""
        with self.calls.turn():
            for mode, function in self._functions.items():
                # Calls in progress still use this function: `_execute` then raises an error or makes new programs.
                setattr(self.model, f"{mode}_function", function if self.calls.in_progress else None)
            self._loops.clear()
            self._probes.clear()
            self._version += 1

    def call(self, method: str) -> Call:
        """Returns the context of a call of one of the model's methods."""
        return Call(self.calls, method, self._version)

    def load_options(self, text: str, *, stages: bool = True) -> None:
        """Sets the options, and the stages unless `stages` is False, from the text of a file."""
        with self.changing():
            self.options = files.read(self.stages if stages else None, text)

    def print_options(self, group: str, print_fn: Callable[[str], object] | None) -> None:
        print_text(getattr(self.options, group).text(self.model.name), print_fn)

    def reset_options(self, group: str, *, compiled: bool) -> None:
        """Resets a group of options to its defaults. Drops the programs if they are `compiled` for these options."""
        with self.calls.turn():
            if self.options.reset(group) and compiled:
                self.reset()

    def traces(self) -> dict[str, int]:
        """Returns the number of programs traced since the last reset, by mode: `{"train": 1}`."""
        return {mode: loop.traces for mode, loop in self._loops.items()}

    # Data.

    def feed(
        self, adapter: DataAdapter, steps: int | None, argument: str, for_prediction: bool = False
    ) -> fed_data.FedData:
        """Returns the data of a call as an infeed passes it to the device, from an adapter of Keras."""
        elements = fed_data.elements_of(adapter, padded=for_prediction)
        with self.calls.turn():
            steps_per_execution, replicas = self.steps_per_execution, self.replicas_for(elements.spec)
        return fed_data.FedData(
            adapter,
            elements,
            steps=steps,
            steps_argument=argument,
            steps_per_execution=steps_per_execution,
            replicas=replicas,
            ordinal=self.ordinal,
            infeed_options=self.options.infeed.changed(),
            for_prediction=for_prediction,
            cluster=self.cluster,
        )

    @property
    def steps_per_execution(self) -> int:
        return internals.steps_per_execution(self.model)

    @property
    def steps_per_update(self) -> int:
        """The number of steps that make one update of the weights."""
        if not self.stages.is_pipelined:
            return self.options.accumulation.gradient_accumulation_steps_per_replica or 1
        steps = self.options.pipelining.gradient_accumulation_steps_per_replica
        if steps is None:
            raise ValueError(
                f"The model which you are attempting to train is pipelined: model `{self.model.name}` has"
                f" {self.stages.check()} stages, which work on several batches at once and then update the weights. Set"
                " `gradient_accumulation_steps_per_replica` with `set_pipelining_options`"
            )
        return steps

    @property
    def sums_gradients(self) -> bool:
        """True if the gradients of several steps make one update of the weights."""
        return self.stages.is_pipelined or self.options.accumulation.plan is not None

    def accumulates(self, mode: str) -> bool:
        """Returns True if programs of this mode return results once for several steps."""
        return mode != "predict" and bool(self.options.pipelining.accumulate_outfeed) and self.stages.is_pipelined

    def outfeed_mode(self, mode: str, each_step: bool = False) -> IPUOutfeedMode:
        """Returns the mode of the outfeed: `ALL` for the results of each step, `LAST` for the last results only."""
        has_all = mode == "predict" or each_step or self.accumulates(mode)
        return IPUOutfeedMode.ALL if has_all else IPUOutfeedMode.LAST

    def outfeed(self, mode: str, each_step: bool = False) -> IPUOutfeedQueue:
        options = self.options.outfeed.changed()
        return IPUOutfeedQueue(self.outfeed_mode(mode, each_step), device_ordinal=self.ordinal, **options)

    @contextlib.contextmanager
    def beginning(self, data: fed_data.FedData) -> Iterator[None]:
        """Runs the block in a turn, in which the model has the steps per execution of `data`.

        The turn ends when Keras begins to iterate over `data`, because Keras has read the number of steps by then.
        """
        with contextlib.ExitStack() as turn:
            turn.enter_context(self.calls.turn())
            turn.enter_context(internals.with_steps_per_execution(self.model, data.steps_per_execution))
            data.on_iteration = turn.close
            yield

    @contextlib.contextmanager
    def with_options(self, group: str, **changes: object) -> Iterator[None]:
        """Runs the block in a turn with changed options of a group, for programs that are analyzed and not run."""
        with self.calls.turn():
            original = getattr(self.options, group)
            setattr(self.options, group, replace(original, **changes))
            try:
                yield
            finally:
                setattr(self.options, group, original)

    # Programs.

    def make_function(self, mode: str) -> Callable[[Nested], Nested]:
        """Creates the loop of a mode, and returns the function that Keras calls for each execution."""
        self._loops[mode] = self.loop(mode)
        return self._functions[mode]

    def _execute(self, mode: str, source: Nested) -> Nested:
        call = self.calls.current
        if call is not None and call.version != self._version and call.method in ("fit", "evaluate"):
            raise RuntimeError(
                f"model `{self.model.name}` was compiled, or got other options, while its `{call.method}` was running, which"
                f" cannot continue with other programs: change the model before or after `{call.method}`"
            )
        loop = self._loops.get(mode)
        if loop is None:
            with self.calls.turn():
                loop = self._loops[mode] = self._loops.get(mode) or self.loop(mode)
        return loop(source)

    def loop(self, mode: str) -> Loop:
        """Returns a loop of the mode `"train"`, `"test"` or `"predict"`, whose programs are traced later."""
        model = self.model
        if mode == "train" and self.sums_gradients and any(map(internals.has_own_minimize, chain(model.optimizer))):
            raise ValueError(
                f"the optimizer of model `{model.name}` defines its own `minimize`, which is not called when the gradients of"
                " several steps make one update: override its `apply` or `update_step` instead"
            )
        if model.run_eagerly:
            raise RuntimeError(
                f"model `{model.name}` was compiled with `run_eagerly=True`, but a Keras model cannot run eagerly under an"
                " `IPUStrategy`: compile it with `run_eagerly=False`; to debug it, make it outside of the scope"
            )
        step = internals.converting(getattr(model, f"{mode}_step"))
        if self.stages.is_pipelined:
            return Loop(self, mode, step, pipelined=self._pipelined(mode))
        accumulation = self.options.accumulation.plan if mode == "train" else None
        if mode == "train" and accumulation is None:
            step = capturing(model, step)
        return Loop(self, mode, step, accumulation)

    def _pipelined(self, mode: str) -> PipelinedModel:
        kind = type(self.model)
        base_kind = keras.Sequential if isinstance(self.model, keras.Sequential) else internals.Functional
        for name, base in ((f"{mode}_step", keras.Model), ("call", base_kind)):
            if name == "call" and self.stages.is_subclassed:
                continue
            if getattr(kind, name) is not getattr(base, name):
                raise RuntimeError(
                    f"The function `{name}` for the model {self.model.name} has been overridden, and a model with pipeline"
                    " stages runs its layers one by one: use layers and losses of its own instead"
                )
        return PipelinedModel(
            self.model,
            self.stages,
            mode,
            micro_batches=self.steps_per_update if mode == "train" else None,
            accumulate_outfeed=self.accumulates(mode),
            options=self.options.pipelining,
        )
