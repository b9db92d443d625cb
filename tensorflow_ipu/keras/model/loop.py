"""Programs of Keras models: steps in a loop on the device, from a feed to an outfeed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import keras

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.strategy import IPUStrategyV1
    from tensorflow_ipu.strategy.scope import PreparedProgram

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue
from tensorflow_ipu.keras.data.elements import Elements
from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation, accumulated_step
from tensorflow_ipu.keras.pipeline.program import PipelinedModel

# Takes a batch, returns what a step of Keras does: logs, or predictions.
Step: TypeAlias = "Callable[[Nested], Nested]"


class Loop:
    """The programs of one kind of step: a loop for each structure of data, a step alone, and one for a single batch.

    The queues and the number of steps are arguments of a program, so that the next epoch, and the next data of the same
    spec, run the executable that is there.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: IPUStrategyV1,
        name: str,
        step: Step,
        accumulation: StepAccumulation | None = None,
        pipelined: PipelinedModel | None = None,
    ) -> None:
        """Makes programs of `step`."""
        self._strategy = strategy
        self._name = name
        self._programs: dict[tuple[str, int], Callable[..., None]] = {}
        self._pipelined = pipelined
        self._counts: dict[int, tf.Tensor] = {}
        self._latest: _Latest | None = None
        self._traces = 0
        self._shapes = replicas.ShapesOfData()
        self._specs: dict[Nested, Nested] = {}
        self._model = model
        self._step = tf.autograph.experimental.do_not_convert(step)
        self._accumulation = accumulation
        single = tf.function(self._one_step, jit_compile=True, autograph=False, reduce_retracing=False)
        self._single = self._named(single)

    @property
    def traces(self) -> int:
        """How many programs have been traced, each of which compiles once."""
        return self._traces

    def returned_spec(self, elements: Elements) -> Nested:
        """What a step returns for such elements, of `tf.TensorSpec`; a program for them was traced."""
        return self._specs[elements.key]

    def run(self, elements: Elements, infeed: IPUInfeedQueue, outfeed: IPUOutfeedQueue, steps: int) -> None:
        """Runs steps on the device, each with the next batch of `infeed`; what they return goes to `outfeed`."""
        self._note_shapes(elements)
        if self._pipelined is not None:
            self._run_pipelined(self._pipelined, elements, infeed, outfeed, steps)
            return
        # A loop of one step would copy all that it carries, the weights among it, in and out for that one.
        looped = steps > 1 or self._accumulation is not None
        key = (elements.key, looped)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._make(elements, looped)
        count = self._counts.get(steps)
        if count is None:
            count = self._counts[steps] = tf.constant(steps)
        self._execute(program, (infeed, outfeed, count))

    def _note_shapes(self, elements: Elements) -> None:
        if elements.key not in self._specs:
            self._shapes.note(f"a step of the model {self._model.name}", elements.spec)

    def _execute(self, program: Callable[..., None], arguments: tuple[object, ...]) -> None:
        """Runs a program. The executions of an epoch have the same queues, so it is prepared once for all of them."""
        if self._latest is None or not self._latest.is_of(program, arguments):
            self._latest = _Latest(program, arguments, self._strategy.prepare(program, arguments))
        self._latest.prepared.run()

    def _run_pipelined(
        self,
        pipelined: PipelinedModel,
        elements: Elements,
        infeed: IPUInfeedQueue,
        outfeed: IPUOutfeedQueue,
        steps: int,
    ) -> None:
        # The plan of a pipeline says how often it is run.
        key = (elements.key, steps)
        if key not in self._programs:

            @tf.function(jit_compile=True, autograph=False)
            def program(infeed: IPUInfeedQueue, outfeed: IPUOutfeedQueue) -> None:
                self._traces += 1
                pipelined.run(elements, infeed, outfeed, steps)
                self._specs[elements.key] = outfeed.element_spec

            self._programs[key] = self._named(program)
        self._execute(self._programs[key], (infeed, outfeed))

    def run_single(self, batch: Nested) -> Nested:
        """Runs one step with a batch that is there, and returns what it returns."""
        return self._strategy.run(self._single, (batch,))

    def _one_step(self, batch: Nested) -> Nested:
        self._traces += 1
        return self._step(batch)

    def _make(self, elements: Elements, looped: bool) -> Callable[..., None]:
        @tf.function(jit_compile=True, autograph=False)
        def program(infeed: IPUInfeedQueue, outfeed: IPUOutfeedQueue, steps: tf.Tensor) -> None:
            self._traces += 1
            self._insert(elements, infeed, outfeed, steps if looped else None)

        return self._named(program)

    def described(
        self, elements: Elements, infeed: IPUInfeedQueue, outfeed: IPUOutfeedQueue, steps: int
    ) -> Callable[[], None]:
        """The program that `run` would run with these arguments, for reading: its loop is of a number that it tells.

        The queues need not be initialized.
        """

        @tf.function(jit_compile=True, autograph=False)
        def program() -> None:
            if self._pipelined is not None:
                self._pipelined.run(elements, infeed, outfeed, steps)
            else:
                looped = steps > 1 or self._accumulation is not None
                self._insert(elements, infeed, outfeed, tf.constant(steps) if looped else None)

        return self._named(program)

    def _named(self, program: Any) -> Callable[..., Any]:
        program.__name__ = self._name
        return program

    def _insert(
        self, elements: Elements, infeed: IPUInfeedQueue, outfeed: IPUOutfeedQueue, steps: tf.Tensor | None
    ) -> None:
        """Puts so many steps into the program that is being traced; None for one, without a loop."""

        def step() -> None:
            outfeed.enqueue(self._step(elements.unpack(infeed._dequeue())))

        if steps is None:
            step()
        elif self._accumulation is None:
            _repeat(steps, step)
        else:
            update = accumulated_step(self._model, step, self._accumulation)
            _repeat(steps // self._accumulation.steps, update)
        self._specs[elements.key] = outfeed.element_spec
        self._model._ipu_extension.check_traced(elements.spec)


class _Latest:
    """What ran last, and with which arguments: one by one, as they are compared by identity."""

    def __init__(self, program: Callable[..., None], arguments: tuple[object, ...], prepared: PreparedProgram) -> None:
        """Takes a program with its arguments, of which it keeps no queue of data alive."""
        self._program = program
        self._arguments = [weakref.ref(one) if isinstance(one, IPUInfeedQueue) else one for one in arguments]
        self.prepared = prepared

    def is_of(self, program: Callable[..., None], arguments: tuple[object, ...]) -> bool:
        """Whether it is what would be prepared for these arguments."""
        if program is not self._program or len(arguments) != len(self._arguments) or not self.prepared.is_current:
            return False
        held = (one() if isinstance(one, weakref.ref) else one for one in self._arguments)
        return all(one is other for one, other in zip(held, arguments, strict=True))


def _repeat(count: tf.Tensor, body: Callable[[], None]) -> None:
    def run_body(i: tf.Tensor) -> tuple[tf.Tensor]:
        body()
        return (i + 1,)

    tf.while_loop(lambda i: i < count, run_body, (tf.constant(0),), parallel_iterations=1)
