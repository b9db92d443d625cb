"""What a Keras model that was made in a strategy's scope has in addition: its options, and its programs."""

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


def fitting(ipus: int, needed: int, model: keras.Model, where: str) -> int:
    """Returns how many replicas fit into a device."""
    if ipus % needed:
        raise ValueError(
            f"Current device has {ipus} IPUs attached, however the current model `{model.name}` requires a multiple of"
            f" {needed} IPUs: {where}. Configure so many with `IPUConfig.auto_select_ipus`, and call"
            " `configure_ipu_system()`"
        )
    return ipus // needed


class ShardingProbe(NamedTuple):
    """The IPUs and the stages that the layers of a model name in their calls."""

    ipus: int
    has_stages: bool


MODES = ("train", "test", "predict")


def set_class(model: keras.Model, kind: type) -> None:
    """Sets the type of a model, past the property `__class__` of models of the scope."""
    vars(object)["__class__"].__set__(model, kind)


class Extension:
    """What a model of a scope has in addition to Keras's: options, pipeline stages, and functions that run its steps."""

    def __init__(self, model: keras.Model, strategy: IPUStrategyV1) -> None:
        self.model = model
        self.strategy = strategy
        self.options = Options()
        self.stages = StageAssignment(model, strategy)
        # The last batch of each mode: a structure of `tf.TensorSpec`, and None where data is missing.
        self.seen: dict[str, Nested] = {}
        self.calls = Calls(model)
        # Guarded by the turns of calls: what was made of the model and its options, and how often it was dropped.
        self._loops: dict[str, Loop] = {}
        self._probes: dict[str, ShardingProbe] = {}  # By the spec of a batch.
        self._version = 0
        self._functions = {mode: functools.partial(self._execute, mode) for mode in MODES}

    def __deepcopy__(self, memo: dict[int, object]) -> Extension:
        """Returns a copy for the copy of the model, which Keras 2 makes of one that is not built yet."""
        model = copy.deepcopy(self.model, memo)
        set_class(model, type(self.model))
        made = Extension(model, self.strategy)
        made.options = copy.deepcopy(self.options, memo)
        return made

    @property
    def ordinal(self) -> int:
        return self.strategy.extended.ordinal

    @property
    def cluster(self) -> Cluster | None:
        """Returns the workers that train the model together; None for this process alone."""
        return self.strategy.extended.cluster if self.strategy.extended.workers > 1 else None

    def replicas_for(self, spec: Nested) -> int:
        """Returns how many replicas run a program of the model."""
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
        """Checks that the program being traced has as many replicas as it was taken to have."""
        if _state.ipus_of_device(self.ordinal) == 1:
            return
        graph: tf.Graph = tf.compat.v1.get_default_graph()
        found, expected = programs.power_of_2(programs.shards_of(graph)), self._probe(spec).ipus
        if found != expected:
            raise ValueError(
                f"the steps of model `{self.model.name}` use {found} IPUs by `ipu_shard`, and the `call` of its layers uses"
                f" {expected}, by which its replicas were counted: use `ipu_shard` in `call`"
            )

    def _probe(self, spec: Nested) -> ShardingProbe:
        """Calls the model with symbols, to see which scopes its layers enter."""
        key = repr(spec)
        if key not in self._probes:
            graph = graphs.FunctionGraph("sharding_probe")
            before = entered()
            # A model whose steps are its own need not be callable. If it is at fault, its program will say so.
            with contextlib.suppress(Exception), self.strategy.scope(), graph.as_default():
                internals.called_with_symbols(self.model, symbols_of(spec), training=True)
            ipus = programs.power_of_2(programs.shards_of(graph))
            self._probes[key] = ShardingProbe(ipus, entered() > before)
        return self._probes[key]

    def _default_mapping(self, stages: int) -> list[int]:
        schedule = self.options.pipelining.pipeline_schedule
        if isinstance(schedule, pipelining.PhasedExecution):
            return [ipu for (ipu,) in schedule.default_mapping([1] * stages)]
        return list(range(stages))

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Returns a turn in which options or stages change, after which the programs are dropped."""
        with self.calls.turn():
            yield
            self.reset()

    def reset(self) -> None:
        """Drops the programs: the next call makes new ones, by the options as they are then."""
        with self.calls.turn():
            for mode, function in self._functions.items():
                # Keras calls it in the calls that are under way.
                setattr(self.model, f"{mode}_function", function if self.calls.under_way else None)
            self._loops.clear()
            self._probes.clear()
            self._version += 1

    def call(self, method: str) -> Call:
        """Returns a block that is a call of a method of the model."""
        return Call(self.calls, method, self._version)

    def take_options(self, text: str, *, stages: bool = True) -> None:
        """Sets the options, and the stages if wanted, from the text of a file."""
        with self.changing():
            self.options = files.read(self.stages if stages else None, text)

    def print_options(self, group: str, print_fn: Callable[[str], object] | None) -> None:
        print_text(getattr(self.options, group).text(self.model.name), print_fn)

    def reset_options(self, group: str, *, compiled: bool) -> None:
        """Resets a group of options to its defaults, and drops the programs if they were compiled by it."""
        with self.calls.turn():
            if self.options.reset(group) and compiled:
                self.reset()

    def traces(self) -> dict[str, int]:
        """Returns how many programs of `"train"`, `"test"` and `"predict"` were traced since the last reset."""
        return {mode: loop.traces for mode, loop in self._loops.items()}

    # Data.

    def feed(
        self, adapter: DataAdapter, steps: int | None, argument: str, for_prediction: bool = False
    ) -> fed_data.FedData:
        """Creates the data that the device is fed with from data that Keras adapted."""
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
        return internals.steps_at_once(self.model)

    @property
    def steps_per_update(self) -> int:
        """Returns how many steps make one update of the weights."""
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
    def gathers(self) -> bool:
        """Returns True if gradients of several steps make one update of the weights."""
        return self.stages.is_pipelined or self.options.accumulation.plan is not None

    def accumulates(self, mode: str) -> bool:
        """Returns True if programs of `"train"`, `"test"` or `"predict"` return results once for several steps."""
        return mode != "predict" and bool(self.options.pipelining.accumulate_outfeed) and self.stages.is_pipelined

    def outfeed_mode(self, mode: str, each_step: bool = False) -> IPUOutfeedMode:
        """Returns the mode of the outfeed: what each step of `"train"`, `"test"` or `"predict"` returns, or the last alone."""
        each = mode == "predict" or each_step or self.accumulates(mode)
        return IPUOutfeedMode.ALL if each else IPUOutfeedMode.LAST

    def outfeed(self, mode: str, each_step: bool = False) -> IPUOutfeedQueue:
        options = self.options.outfeed.changed()
        return IPUOutfeedQueue(self.outfeed_mode(mode, each_step), device_ordinal=self.ordinal, **options)

    @contextlib.contextmanager
    def beginning(self, data: fed_data.FedData) -> Iterator[None]:
        """Returns a block that begins with a turn, until Keras iterates over `data`: by then it has read the steps at once."""
        with contextlib.ExitStack() as turn:
            turn.enter_context(self.calls.turn())
            turn.enter_context(internals.taking_steps(self.model, data.steps_per_execution))
            data.when_taken = turn.close
            yield

    @contextlib.contextmanager
    def with_options(self, group: str, **changes: object) -> Iterator[None]:
        """Returns a turn in which a group of options has other values, for programs that are read and not run."""
        with self.calls.turn():
            before = getattr(self.options, group)
            setattr(self.options, group, replace(before, **changes))
            try:
                yield
            finally:
                setattr(self.options, group, before)

    # Programs.

    def make_function(self, mode: str) -> Callable[[Nested], Nested]:
        """Makes the function by which Keras runs an execution of `"train"`, `"test"` or `"predict"`."""
        self._loops[mode] = self.loop(mode)
        return self._functions[mode]

    def _execute(self, mode: str, source: Nested) -> Nested:
        call = self.calls.current
        if call is not None and call.version != self._version and call.method in ("fit", "evaluate"):
            raise RuntimeError(
                f"model `{self.model.name}` was compiled, or got other options, while its `{call.method}` was running, which"
                f" cannot go on with other programs: change the model before or after `{call.method}`"
            )
        loop = self._loops.get(mode)
        if loop is None:
            with self.calls.turn():
                loop = self._loops[mode] = self._loops.get(mode) or self.loop(mode)
        return loop(source)

    def loop(self, mode: str) -> Loop:
        """Makes the programs of `"train"`, `"test"` or `"predict"`; none is traced yet."""
        model = self.model
        if mode == "train" and self.gathers and any(map(internals.has_own_minimize, chain(model.optimizer))):
            raise ValueError(
                f"the optimizer of model `{model.name}` has a `minimize` of its own, which is not called where gradients of"
                " several steps make one update: override its `apply` or `update_step` instead"
            )
        if model.run_eagerly:
            raise RuntimeError(
                f"model `{model.name}` was compiled with `run_eagerly=True`, and a Keras model cannot run eagerly under an"
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
        plain_kind = keras.Sequential if isinstance(self.model, keras.Sequential) else internals.Functional
        for name, plain in ((f"{mode}_step", keras.Model), ("call", plain_kind)):
            if name == "call" and self.stages.is_subclassed:
                continue
            if getattr(kind, name) is not getattr(plain, name):
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
