"""`IPUStrategy`: the `tf.distribute.Strategy` that runs programs on an emulated IPU device."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import tensorflow as tf

from tensorflow_ipu import _upcalls, programs
from tensorflow_ipu._base import environment, lifetimes, progress
from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu._base.notebook import Facts, NotebookView, Table
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu.config import _state
from tensorflow_ipu.errors import DeviceLimitError
from tensorflow_ipu.feeds import iterator
from tensorflow_ipu.programs.diagnostics import tracebacks
from tensorflow_ipu.strategy.extended import IPUExtended, reduction

if TYPE_CHECKING:
    from tensorflow_ipu.analysis import machine as machine_model

_logger = logging.getLogger(__name__)

# Parts of TensorFlow's errors for an object that belongs to another strategy, or was made outside any scope.
_OTHER_STRATEGY_ERRORS = (
    "Must not nest tf.distribute.Strategy scopes",
    "Mixing different tf.distribute.Strategy objects",
)


@contextlib.contextmanager
def _other_strategies_explained() -> Iterator[None]:
    """Runs the block, which traces a program, and explains errors about objects of another strategy."""
    try:
        yield
    except RuntimeError as exc:
        if not any(part in str(exc) for part in _OTHER_STRATEGY_ERRORS):
            raise
        raise ValueError(
            "the program uses an object of another strategy than the one that runs it, most likely a model or an optimizer"
            " that was made outside of its scope: make the model inside `strategy.scope()`, and the optimizer too"
        ) from exc


class PreparedProgram:
    """A program with its inputs, which can run many times under one configuration. It keeps no infeed alive."""

    def __init__(self, extended: IPUExtended, program: programs.Program) -> None:
        self._extended = extended
        self.program = program

    @property
    def is_current(self) -> bool:
        """True if the configuration is unchanged. If False, a new program has to be prepared."""
        return self._extended.target == self.program.target

    @tracebacks.user_lines_alone
    def run(self) -> Nested:
        """Runs the program, and returns the results of its function."""
        with tf.device(self.program.device):
            return self.program.run()


class IPUStrategyV1(tf.compat.v1.distribute.Strategy, tf.distribute.Strategy, NotebookView):
    """Places variables on an IPU device and runs whole functions on it.

    Inside `scope()`, variables (and so Keras models and optimizers) are created on the IPU device, with initial values
    from the host. `run` executes a `tf.function` as one compiled program, including its loops:

        strategy = ipu.IPUStrategy()
        with strategy.scope():
            model = tf.keras.Sequential([...])
            iterator = iter(dataset)
            strategy.run(train_steps, args=(iterator, model))

    The IPUs of a device are replicas in a program. On the host, the strategy has one replica.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
        *,
        host_kernels: bool | None = None,
    ) -> None:
        """Creates the strategy.

        Args:
          ipu_device: The IPU device, which need not be configured yet.
          cpu_device: The device on which initial values are computed.
          enable_dataset_iterators: Whether `iter(dataset)` in the scope returns an `IPUIterator`, whose `next` runs in
            the program.
          enable_keras_extensions: Whether models made in the scope run the loops of `fit`, `evaluate` and `predict` on
            the device.
          host_kernels: Whether TensorFlow's kernels may compute layers if they are faster than XLA's. None: the value
            of `TENSORFLOW_IPU_HOST_KERNELS`, or True if that is unset.

        Raises:
          ValueError: `ipu_device` is not an IPU device, or `cpu_device` is not a CPU; or `POPLAR_ENGINE_OPTIONS`
            requests reports with unsupported options.
          DeviceLimitError: `ipu_device` is beyond the number of registered IPU devices.
          TypeError: An `enable_...` argument or `host_kernels` is not a bool.
        """
        ordinal = _ordinal("ipu_device", ipu_device, "IPU")
        cpu_ordinal = _ordinal("cpu_device", cpu_device, "CPU")
        # TensorFlow would silently use the CPU instead of an unknown device.
        registered = environment.registered_devices()
        if ordinal >= registered:
            raise DeviceLimitError(
                f"`ipu_device` is `/device:IPU:{ordinal}`, and {registered} IPU devices are registered, the last of them"
                f" `/device:IPU:{registered - 1}`; " + environment.way_out(environment.DEVICES_VARIABLE, ordinal + 1)
            )
        check_bool("enable_dataset_iterators", enable_dataset_iterators)
        check_bool("enable_keras_extensions", enable_keras_extensions)
        if host_kernels is None:
            host_kernels = environment.host_kernels()
        check_bool("host_kernels", host_kernels)
        super().__init__(self._make_extended(ordinal, cpu_ordinal, host_kernels))
        _logger.debug("a strategy for `%s`, kernels of the host %s", ipu_device, "on" if host_kernels else "off")
        self._enable_dataset_iterators = enable_dataset_iterators
        self._enable_keras_extensions = enable_keras_extensions
        directory = environment.report_directory()
        self._auto_reports = None if directory is None else _AutoReports(directory)
        if enable_keras_extensions:
            _upcalls.follow_models(self)

    def _make_extended(self, ordinal: int, cpu_ordinal: int, host_kernels: bool) -> IPUExtended:
        return IPUExtended(self, ordinal, cpu_ordinal, host_kernels)

    def scope(self) -> contextlib.AbstractContextManager[IPUStrategyV1]:
        """Returns a context manager that makes this strategy the current one.

        A notebook may call `strategy.scope().__enter__()`, and later `strategy.scope().__exit__(None, None, None)` on
        the same thread. Leaving a scope that is not entered, or not the innermost one, raises `RuntimeError`.
        """
        return _Scope(self, self._enable_keras_extensions)

    @tracebacks.user_lines_alone
    def run(
        self,
        fn: Callable[..., Nested],
        args: Sequence[Nested] = (),
        kwargs: Mapping[str, Nested] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Nested:
        """Runs `fn` as one program on the IPU device, and returns the results of its first replica.

        Args:
          fn: A `tf.function` or concrete function, which is compiled even without `jit_compile=True`. In another
            `tf.function`, it may be any callable.
          args: A list or tuple of positional arguments: tensors, Python values, iterators, queues, models, optimizers.
          kwargs: A dict of keyword arguments of the same kinds.
          options: Accepted for `tf.distribute`; no effect.

        Returns:
          The structure that `fn` returns.

        Raises:
          ValueError: `fn` is a plain function and the call is eager; the program uses variables of another device, or
            an optimizer that was made outside of the scope; or `args` is not a list or tuple.
          TypeError: `fn` does not accept the arguments; or an input or output of the program is float64.
          NotConfiguredError: The configured system has no such device.
          tf.errors.OutOfRangeError: The dataset of the program ended.
          tf.errors.OpError: The program failed.
        """
        if options is not None and not isinstance(options, tf.distribute.RunOptions):
            raise TypeError(f"`options` must be a `tf.distribute.RunOptions`, but is {options!r}")
        _check_call(fn, args, kwargs)
        extended = self.extended
        kwargs = kwargs or {}
        if not tf.executing_eagerly():
            if self._auto_reports is not None:
                self._auto_reports.warn("it is added to a graph, and reports do not support programs in graphs")
            with tf.distribute.Strategy.scope(self), _other_strategies_explained():
                call = (fn, args, kwargs, extended.ipu_device, extended.host_kernels)
                return extended.call_on_device(programs.insert, call, {})
        with tf.device(extended.ipu_device):
            return self._program_to_run(fn, args, kwargs).run()

    @tracebacks.user_lines_alone
    def prepare(
        self, fn: Callable[..., Nested], args: Sequence[Nested] = (), kwargs: Mapping[str, Nested] | None = None
    ) -> PreparedProgram:
        """Returns the program that `run` would run, for any number of runs. Arguments and errors are as for `run`.

        Raises:
          RuntimeError: A graph is being built.
        """
        if not tf.executing_eagerly():
            raise RuntimeError("`prepare` is for eager execution, and a graph is being built: call `run` in it")
        _check_call(fn, args, kwargs)
        with tf.device(self.extended.ipu_device):
            return PreparedProgram(self.extended, self._program_to_run(fn, args, kwargs or {}))

    def _program_to_run(
        self, fn: Callable[..., Nested], args: Sequence[Nested], kwargs: Mapping[str, Nested]
    ) -> programs.Program:
        """Returns the program of a function, and saves its report if reports of all programs are requested."""
        if not isinstance(fn, programs.GRAPH_FUNCTIONS):
            raise ValueError(
                f"`{type(self).__name__}.run` does not support eager execution, and `fn` is the plain callable {fn!r}."
                " Decorate it with `@tf.function(jit_compile=True)`, or call `run` inside of a `tf.function`"
            )
        program = self._program(fn, args, kwargs, self.extended.target)
        if self._auto_reports is not None:
            self._auto_reports.save(program.function, lambda: self.report(fn, args, kwargs))
        return program

    def _program(
        self, fn: Callable[..., Nested], args: Sequence[Nested], kwargs: Mapping[str, Nested], target: programs.Target
    ) -> programs.Program:
        """Finds or traces the program of a function and its arguments, on the device of the caller."""
        extended = self.extended
        call = (fn, args, kwargs, extended.ipu_device, target)
        with extended.as_replica:
            program = programs.Program.find(*call)
        if program is None:
            with tf.distribute.Strategy.scope(self), _other_strategies_explained():
                program = extended.call_on_device(programs.Program.trace, call, {})
        return program

    @tracebacks.user_lines_alone
    def report(
        self,
        fn: Callable[..., Nested],
        args: Sequence[Nested] = (),
        kwargs: Mapping[str, Nested] | None = None,
        machine: machine_model.System | machine_model.Machine | str | None = None,
        trip_counts: Mapping[str, int] | None = None,
        *,
        kept: machine_model.Kept | None = None,
    ) -> machine_model.Report:
        """Predicts from a trace, without a run, if a program fits on a real machine and how long a step takes there.

        Args:
          fn: As for `run`.
          args: As for `run`.
          kwargs: As for `run`.
          machine: A name such as `"GC200"` or `"Bow Pod16"`, a `machine.Machine` or a `machine.System`. None: the
            machine that `IPUConfig.ipu_model` describes.
          trip_counts: The numbers of iterations that only a run determines, by the loop's name in the report; `*` is
            the number for all other loops.
          kept: The variables and slots of optimizers. None: those of each optimizer that the code of `fn`, or of a
            function called by `fn`, names.

        Returns:
          The report.

        Raises:
          ValueError: `fn` is a plain function, `machine` is unknown, or `trip_counts` names no loop of the program.
          TypeError: `fn` does not accept the arguments; or `machine` has a wrong type.
          NotImplementedError: The program has several pipelines.
        """
        from tensorflow_ipu.analysis import machine as model
        from tensorflow_ipu.analysis import program_report as predicted  # Imported here, because few programs need it.

        if not isinstance(fn, programs.GRAPH_FUNCTIONS):
            raise ValueError(f"`fn` must be a `tf.function`, but is {fn!r}. Decorate it with `@tf.function`")
        device = self.extended.ipu_device
        setting = model.setting_of(machine, _state.options_of_device(self.extended.ordinal))
        # The report reads convolutions of XLA, not of host kernels.
        target = self.extended.target._replace(host_kernels=False)
        values = (*args, *(kwargs or {}).values())
        with progress.of(f"predicting `{getattr(fn, '__name__', fn)}`"):
            with tf.device(device):
                program = self._program(fn, args, kwargs or {}, target)
            return predicted.report_of(fn, values, program, self.extended.ipus, setting, trip_counts, kept)

    def reduce(self, reduce_op: tf.distribute.ReduceOp | str, value: Nested, axis: int | None = None) -> Nested:
        """Reduces a result of `run` over an axis.

        Args:
          reduce_op: `tf.distribute.ReduceOp.SUM` or `MEAN`, or its name.
          value: The result.
          axis: An axis or a tuple of axes. None returns `value`, because the strategy has one replica on the host.

        Raises:
          ValueError: `reduce_op` is neither a sum nor a mean, or `axis` is out of range.
        """
        return super().reduce(reduction(reduce_op), value, axis)

    def experimental_run_v2(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises `RuntimeError`: `run` replaces this method."""
        del args, kwargs
        raise RuntimeError("`experimental_run_v2` was removed. Call `run`, which takes the same arguments")

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> tf.data.Dataset:
        """Returns `dataset`, because infeeds pass its elements to the replicas. `options` have no effect."""
        del options
        return dataset

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> tf.data.Dataset:
        """Returns `dataset_fn(tf.distribute.InputContext())`. `options` have no effect."""
        del options
        return dataset_fn(tf.distribute.InputContext())

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def __repr__(self) -> str:
        ipus = self.extended.ipus
        name = type(self).__name__.removesuffix("V1")
        return f"<{name} on {self.extended.ipu_device[-len('/device:IPU:0') :]}: {ipus} IPU{'s' if ipus > 1 else ''}>"

    def _facts(self) -> Facts:
        extended = self.extended
        configured = _state.options_of_device(extended.ordinal) is not None
        rows = (
            ("device", f"`{extended.ipu_device}`"),
            ("IPUs", f"{extended.ipus}{'' if configured else ', as no system is configured'}"),
            ("replicas of a program without pipelines, in all", extended.ipus * extended.workers),
            ("workers", extended.workers),
            ("this thread is in its scope", "yes" if tf.distribute.get_strategy() is self else "no"),
            ("kernels of the host", "where they are faster" if extended.host_kernels else "none"),
            ("`iter(dataset)` is for programs", "yes" if self._enable_dataset_iterators else "no"),
            ("`fit` and the like run on the device", "yes" if self._enable_keras_extensions else "no"),
        )
        return Facts(repr(self)[1:-1], "", [Table(rows)])

    @property
    def supports_loss_scaling(self) -> bool:
        """True, because the strategy supports loss scaling."""
        return True


IPUStrategy = IPUStrategyV1
"""The usual name of `IPUStrategyV1`."""


def supporting_loss_scaling(original: Callable[[], bool]) -> Callable[[], bool]:
    """Replaces the check of the strategy in Keras 2's `LossScaleOptimizer` by one that also accepts `IPUStrategy`."""

    def supports() -> bool:
        current = tf.distribute.get_strategy()
        return current.supports_loss_scaling if isinstance(current, IPUStrategyV1) else original()

    return supports


def report(
    fn: Callable[..., Nested],
    args: Sequence[Nested] = (),
    kwargs: Mapping[str, Nested] | None = None,
    machine: machine_model.System | machine_model.Machine | str | None = None,
    trip_counts: Mapping[str, int] | None = None,
    *,
    kept: machine_model.Kept | None = None,
) -> machine_model.Report:
    """Calls `IPUStrategy.report` on the strategy of the current scope, or else on a new strategy."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, IPUStrategyV1):
        strategy = IPUStrategyV1()
    return strategy.report(fn, args, kwargs, machine, trip_counts, kept=kept)


def _check_call(fn: object, args: object, kwargs: object) -> None:
    if not callable(fn):
        raise TypeError(f"`fn` must be a `tf.function`, but is {fn!r}")
    if not isinstance(args, (list, tuple)):
        raise ValueError(f"`args` must be a list or tuple of `fn`'s arguments, but is {args!r}. Write `args=(x,)`")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ValueError(f"`kwargs` must map names to `fn`'s arguments, but is {kwargs!r}")


def _ordinal(argument: str, value: object, kind: str) -> int:
    name = rf"(/job:localhost/replica:0/task:0)?/?(device:)?{kind}(:(?P<ordinal>\d+))?"
    match = re.fullmatch(name, value, re.IGNORECASE) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"`{argument}` must name a device like `/device:{kind}:0`, but is {value!r}")
    return int(match["ordinal"] or 0)


class _Entered(NamedTuple):
    scope: _Scope
    graph: tf.Graph
    exits: contextlib.ExitStack


class _EnteredScopes(list[_Entered]):
    """The scopes that a thread has entered and not left. They are left when the thread ends."""

    def __del__(self) -> None:
        while self:
            with contextlib.suppress(Exception):  # TensorFlow may have deleted its data of the thread.
                self.pop().exits.close()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.entered = _EnteredScopes()


_thread = _Thread()


class _Scope:
    """The scope of a strategy, which may be entered several times.

    `strategy.scope().__exit__(...)` makes a new object, which leaves the scope that another object has entered.
    """

    def __init__(self, strategy: IPUStrategyV1, extends_models: bool) -> None:
        self._strategy = strategy
        self._extends_models = extends_models
        self._was_entered = False

    def __enter__(self) -> IPUStrategyV1:
        with contextlib.ExitStack() as contexts:
            contexts.enter_context(tf.distribute.Strategy.scope(self._strategy))
            contexts.enter_context(iterator.on_device())
            if self._extends_models:
                contexts.enter_context(_upcalls.extending_models())
            _thread.entered.append(_Entered(self, tf.compat.v1.get_default_graph(), contexts.pop_all()))
        self._was_entered = True
        return self._strategy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        graph = self._innermost().graph
        exits = _thread.entered.pop().exits
        # TensorFlow stores scopes in the default graph, which `keras.backend.clear_session()` replaces.
        with contextlib.nullcontext() if graph is tf.compat.v1.get_default_graph() else graph.as_default():
            exits.__exit__(kind, error, traceback)

    def _innermost(self) -> _Entered:
        entered = _thread.entered
        can_leave = [self._may_leave(scope) for scope in entered]
        if not any(can_leave):
            raise RuntimeError(
                "this scope was left before, or entered on another thread: leave each scope once, on the thread that entered it"
                if self._was_entered
                else "no scope of this strategy is entered on this thread, so none can be left: enter it by"
                " `with strategy.scope():`, or by `strategy.scope().__enter__()`"
            )
        if not can_leave[-1]:
            raise RuntimeError(
                "scopes are left in the wrong order: another scope was entered after this one, and must be left first"
            )
        if entered[-1].graph is not tf.compat.v1.get_default_graph() and not tf.executing_eagerly():
            raise RuntimeError(
                "this scope is left in a `tf.function` or graph that does not enter it: leave it where it was entered"
            )
        return entered[-1]

    def _may_leave(self, entered: _Entered) -> bool:
        return entered.scope is self if self._was_entered else entered.scope._strategy is self._strategy


_has_warned = False


class _AutoReports:
    """Saves a report of each program in a folder. An error in a report never fails a run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._reported = lifetimes.WeakObjects()  # Programs with a report.

    def save(self, program: object, make: Callable[[], machine_model.Report]) -> None:
        if program in self._reported:
            return
        self._reported.add(program)
        from tensorflow_ipu.analysis import machine

        try:
            machine.autosave(make(), self._directory)
        except Exception as exc:
            self.warn(f"{type(exc).__name__}: {exc}")

    def warn(self, reason: str) -> None:
        global _has_warned  # noqa: PLW0603
        if not _has_warned:
            _has_warned = True
            variable = environment.ENGINE_VARIABLE
            warnings.warn(f"`{variable}` requests reports, but a program has none: {reason}", stacklevel=4)
