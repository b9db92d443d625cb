"""The table of what the package replaces in TensorFlow and Keras, why, and for how long."""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from tensorflow_ipu._base import environment, lifetimes
from tensorflow_ipu._tensorflow import keras_choice

# Returns the replacement of an original; a hook passes it the subject instead.
Make: TypeAlias = "Callable[[Any], Any]"

_NOTHING = object()
_PATCHES = "_ipu_patches"  # The attribute of an object that has the patches that are applied while it lives.


class Lifetime(enum.Enum):
    """The time for which something is replaced."""

    IMPORT = "from the import of the package on"
    TRACE = "while a program is traced"
    SCOPE = "in the scope of a strategy, or of a pipeline stage"
    OBJECT = "while an object lives that needs it"
    INSTALL = "from `compat.install` to `compat.uninstall`"


# Guards what is replaced, and for whom. Reentrant: what makes a replacement may call an action that is due, and release
# another patch.
_lock = threading.RLock()


class Patch:
    """Something that is replaced for a while, and then put back; thread-safe."""

    def __init__(self, *places: str, why: str, lasts: Lifetime, until: str) -> None:
        """Describes it; nothing is replaced yet."""
        self.places = places
        self.why = why
        self.lasts = lasts
        self.until = until
        self._holders: set[object] = set()
        self._put: list[tuple[object, str, object, object]] = []  # Holder, name, what was there, what is there now.
        self._made: dict[str, tuple[Make, Any, Any]] = {}  # A place: what made it, what was there, what was made of it.

    @property
    def is_applied(self) -> bool:
        """Whether it is replaced now."""
        lifetimes.call_due()
        return bool(self._put)

    @property
    def is_loaded(self) -> bool:
        """Whether its modules are imported already."""
        return all(place.partition(":")[0] in sys.modules for place in self.places)

    @contextlib.contextmanager
    def applied(self, make: Make) -> Iterator[None]:
        """A block in which it is replaced by what `make` returns for the original, on all threads."""
        token = object()
        self._hold(token, make)
        try:
            yield
        finally:
            self._release(token)

    def apply_while(self, owner: object, make: Make) -> None:
        """Replaces it as long as an object lives, or others need it."""
        if self in _LivePatches.of(owner):
            return
        token = object()
        self._hold(token, make)
        with _lock:
            applied = _LivePatches.of(owner)
            setattr(owner, _PATCHES, applied)
            is_first = applied.setdefault(self, token) is token  # Else another thread was faster.
        if is_first:
            lifetimes.call_later(owner, lambda: self._release(token))
        else:
            self._release(token)

    def apply_for_good(self, make: Make) -> None:
        """Replaces it until the process ends."""
        self._hold(None, make)

    def _hold(self, token: object, make: Make) -> None:
        found = [_located(place) for place in self.places]  # May import, which takes locks of its own.
        with _lock:
            self._holders.add(token)
            if not self._put:
                self._apply(found, make)

    def _release(self, token: object) -> None:
        with _lock:
            self._holders.discard(token)
            if self._put and not self._holders:
                self._undo()

    def _apply(self, found: list[tuple[object, str]], make: Make) -> None:
        for place, (holder, name) in zip(self.places, found, strict=True):
            before = _own(holder, name)
            plain = getattr(holder, name, None) if before is _NOTHING else before
            known = self._made.get(place)
            if known is None or known[:2] != (make, plain):
                known = self._made[place] = (make, plain, make(plain))
            _write(holder, name, known[2])
            self._put.append((holder, name, before, known[2]))

    def _undo(self) -> None:
        while self._put:
            holder, name, before, ours = self._put.pop()
            # Somebody else's stays, and calls on to ours, which does what it is for and no more.
            if _own(holder, name) is not ours:
                continue
            if before is _NOTHING:
                delattr(holder, name)
            else:
                _write(holder, name, before)


class _LivePatches(dict[Patch, object]):
    """The patches that are applied while an object lives. A copy of the object has none."""

    def __init__(self, owner: object = None) -> None:
        self.owner = None if owner is None else weakref.ref(owner)

    def __reduce__(self) -> tuple[type[_LivePatches], tuple[()]]:
        return _LivePatches, ()

    @staticmethod
    def of(owner: object) -> _LivePatches:
        found: _LivePatches | None = getattr(owner, _PATCHES, None)
        return (
            found if found is not None and found.owner is not None and found.owner() is owner else _LivePatches(owner)
        )


class Hook(Patch):
    """A function in a list of those that TensorFlow calls; it stays there, and acts only while it is applied."""

    # To take it out while TensorFlow goes through the list would leave the next one out.

    def _apply(self, found: list[tuple[object, str]], make: Make) -> None:
        self._act = make
        for holder, name in found:
            hooks = getattr(holder, name)
            if self._called not in hooks:
                hooks.append(self._called)
            self._put.append((holder, name, None, self._called))

    def _undo(self) -> None:
        self._put.clear()

    def _called(self, subject: object) -> None:
        if self._put:
            self._act(subject)


class Changes:
    """Changes to modules and classes that can all be undone; not thread-safe."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []
        self._applied = contextlib.ExitStack()

    def apply(self, patch: Patch, make: Make) -> None:
        """Applies a row of the table."""
        self.enter(patch.applied(make))

    def enter(self, context: contextlib.AbstractContextManager[object]) -> None:
        """Enters a block, which ends as the changes are undone."""
        self._applied.enter_context(context)

    def put(self, holder: object, name: str, value: object) -> None:
        """Sets an attribute of a module or class."""
        self._before.append((holder, name, vars(holder).get(name, _NOTHING)))
        setattr(holder, name, value)

    def undo(self) -> None:
        """Undoes all changes, the last one first."""
        self._applied.close()
        while self._before:
            holder, name, before = self._before.pop()
            if before is _NOTHING:
                delattr(holder, name)
            else:
                setattr(holder, name, before)


def _located(place: str) -> tuple[object, str]:
    """Returns the module, class, object or dict that holds a place, and the name there."""
    module, _, path = place.partition(":")
    holder: object = importlib.import_module(module)
    *way, name = path.split(".")
    for step in way:
        holder = holder[step] if isinstance(holder, dict) else getattr(holder, step)
    return holder, name


def _own(holder: object, name: str) -> Any:
    """Returns the value that a holder itself has; `_NOTHING` where a class inherits it."""
    if isinstance(holder, dict):
        return holder[name]
    return vars(holder).get(name, _NOTHING) if inspect.isclass(holder) else getattr(holder, name)


def _write(holder: object, name: str, value: object) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


__all__ = ["TABLE", "Changes", "Hook", "Lifetime", "Make", "Patch", "all_applied"]

_NO_SCRIPTS = "no script is of IPU TensorFlow any more"
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function"
_HDF5 = "save_model_to_hdf5 load_model_from_hdf5"
if keras_choice.settle():
    _KERAS, _NODE = "tf_keras", "engine.node"
    _KERAS_FORMATS = {
        "tf_keras.src.saving.legacy.saved_model.save": "save",
        "tf_keras.src.saving.legacy.saved_model.load": "load",
        "tf_keras.src.saving.legacy.hdf5_format": _HDF5,
    }
else:
    _KERAS, _NODE = "keras", "ops.node"
    _KERAS_FORMATS = {"keras.src.legacy.saving.legacy_h5_format": _HDF5}

AUTOGRAPH_RULES = Patch(
    "tensorflow.python.autograph.core.config:CONVERSION_RULES",
    why="To rewrite this package takes seconds of the first trace, and puts its lines in the place of the user's.",
    lasts=Lifetime.IMPORT,
    until="AutoGraph takes rules from packages",
)

JIT_COMPILE_AUTO = Patch(
    "keras.src.trainers.trainer:Trainer._resolve_auto_jit_compile",
    why="Keras compiles models by itself where TensorFlow lists more than CPUs; this leaves plain models as they are.",
    lasts=Lifetime.IMPORT,
    until="Keras asks for the device of the model",
)

GLOBAL_SEED = Patch(
    "tensorflow.python.eager.context:Context._set_global_seed",
    why="Layers of Keras 2 draw as `tf.random.set_seed` says, on IPUs too; with Keras 3 it stays as it is.",
    lasts=Lifetime.IMPORT,
    until="TensorFlow tells of its seed when it is set",
)

OPERATIONS = Patch(
    "tensorflow.python.framework.ops:Graph._create_op_helper",
    why="Layers and checks are marked for the host's kernels as they come into a graph, on whatever way they do.",
    lasts=Lifetime.TRACE,
    until="graphs call a hook with each new operation",
)

CONVOLUTION_GRADIENT = Patch(
    "tensorflow.python.framework.ops:gradient_registry._registry.Conv2D.type",
    why="XLA:CPU has fast code for convolutions outside of loops alone; see `programs/_host_kernels.py`.",
    lasts=Lifetime.TRACE,
    until="https://github.com/openxla/xla/blob/main/xla/service/cpu/conv_canonicalization.cc looks into loops",
)

PRINT = Patch(
    "tensorflow.python.ops.gen_logging_ops:print_v2",
    why="XLA compiles no print, so the host runs the end of `tf.print`, to which a script may have a name of its own.",
    lasts=Lifetime.TRACE,
    until="TensorFlow's bridge to XLA hands `PrintV2` to the host",
)

PRINTED_TEXT = Patch(
    "tensorflow.python.ops.string_ops:string_format",
    why="XLA has no strings either, so the host puts together what it prints.",
    lasts=Lifetime.TRACE,
    until="see `PRINT`",
)

RANDOM_OPERATIONS = Patch(
    *(
        f"tensorflow.python.ops.gen_random_ops:{name}"
        for name in (
            "multinomial",
            "parameterized_truncated_normal",
            "random_shuffle",
            "random_standard_normal",
            "random_uniform",
            "random_uniform_int",
            "truncated_normal",
        )
    ),
    why="XLA draws from a source that nobody can seed and replicas share; programs use the replica's own seeds.",
    lasts=Lifetime.TRACE,
    until="XLA:CPU takes a seed by run and by device",
)

GENERATOR_REPLICAS = Patch(
    "tensorflow.python.ops.stateful_random_ops:Generator._preprocess_key",
    why="A `tf.random.Generator` draws by the replica's random stream, and on the first as without a strategy.",
    lasts=Lifetime.TRACE,
    until="`tf.distribute` has a context that says which random numbers a replica draws",
)

FUSED_BATCH_NORMS = Patch(
    *(
        f"tensorflow.python.ops.gen_nn_ops:{name}"
        for name in ("_fused_batch_norm", "fused_batch_norm_v2", "fused_batch_norm_v3")
    ),
    *(f"tensorflow:raw_ops.FusedBatchNorm{version}" for version in ("", "V2", "V3")),
    why="`norms.experimental.distributed_batch_norm_replica_group_size` has replicas share statistics; weights may be float16.",
    lasts=Lifetime.TRACE,  # And while `compat` is installed, for old scripts that compute with float16 on the host.
    until="TensorFlow's operation has a group of replicas",
)

KERAS_MOMENTS = Patch(
    "keras:layers.BatchNormalization._moments",
    why="The same for Keras's layer, whose own `synchronized` knows no groups.",
    lasts=Lifetime.TRACE,
    until="Keras's `synchronized` takes a number of replicas",
)

KERAS_SEEDS = Patch(
    "keras:random.SeedGenerator.next",
    why="A seed generator's state is equal on all replicas; other units are to drop out on each.",
    lasts=Lifetime.TRACE,
    until="`SeedGenerator` asks the replica's context of `tf.distribute`",
)

GRADIENT_LOOKUPS = Patch(
    "tensorflow.python.framework.ops:gradient_registry.__class__",
    why="Gradients are placed, and compute, as their operations do, as long as a graph with shards or such scopes lives.",
    lasts=Lifetime.OBJECT,
    until="gradients get the attributes of their operations, as `colocate_gradients_with_ops` gives them the device",
)

OWN_GRADIENTS = Patch(
    "tensorflow.python.framework.ops:get_gradient_function",
    why="The same for operations with a gradient of their own, such as calls of functions.",
    lasts=Lifetime.OBJECT,
    until="see `GRADIENT_LOOKUPS`",
)

RECORDED_OPERATIONS = Patch(
    "tensorflow.python.eager.execute:record_gradient",
    why="A tape's gradient sees what was recorded of an operation: its shard is recorded too.",
    lasts=Lifetime.OBJECT,
    until="see `GRADIENT_LOOKUPS`",
)

GRAPH_RANGES = Hook(
    f"{_FUNCTIONS}.transform:FUNC_GRAPH_TRANSFORMS",
    why="XLA would compile a program anew for each length of its unused ranges; see `programs/_trace_context.py`.",
    lasts=Lifetime.TRACE,
    until="TensorFlow's bridge to XLA does so itself",
)

COMPILED_CALLERS = Hook(
    f"{_FUNCTIONS}.transform:CONCRETE_FUNCTION_CALLBACKS",
    why="A function that holds a program is not compiled for the host along with it, as long as its graph lives.",
    lasts=Lifetime.OBJECT,
    until="TensorFlow leaves out what names a device that it does not compile for",
)

FUNCTION_CALLS = Patch(
    f"{_FUNCTIONS}.atomic_function:make_call_op_in_graph",
    why="A loop gets the state of a feed by the function around it alone: one that had it twice would lose one.",
    lasts=Lifetime.TRACE,
    until="loops capture what a called function captured by way of the function around",
)

CUSTOM_GRADIENTS = Patch(
    "tensorflow.python.framework.registry:Registry.register",
    why="TensorFlow keeps what `tf.custom_gradient` makes in a graph for ever, with its feeds; it goes with its graphs.",
    lasts=Lifetime.TRACE,
    until="`custom_gradient._graph_mode_decorator` registers nothing that outlives its graph",
)

CAPTURES = Patch(
    "tensorflow.python.framework.func_graph:FuncGraph.capture",
    why="A graph gets a tensor of a part of its program on the host as what it is in the program.",
    lasts=Lifetime.OBJECT,
    until="graphs ask the graph of a tensor how they are to capture it",
)

PARTS_OF_HOST = Hook(
    f"{_FUNCTIONS}.transform:CONCRETE_FUNCTION_CALLBACKS",
    why="The host gets the functions of its parts of a program at the end of the trace.",
    lasts=Lifetime.OBJECT,
    until="no need to: TensorFlow has this hook for its debugger",
)

ACCUMULATION_LOOPS = Hook(
    f"{_FUNCTIONS}.transform:FUNC_GRAPH_TRANSFORMS",
    why="Optimizers that accumulate have to be in a loop of as many iterations, known when the outermost function is whole.",
    lasts=Lifetime.OBJECT,
    until="no need to: TensorFlow has this hook for graphs",
)

FUNCTION_ERRORS = Patch(
    f"{_FUNCTIONS}.atomic_function:InterpolateRuntimeError.__exit__",
    why="An error of a program begins with its message, and not with its node's place and tags.",
    lasts=Lifetime.OBJECT,
    until="TensorFlow puts what it knows of a node after the message",
)

SESSION_ERRORS = Patch(
    "tensorflow.python.framework.error_interpolation:interpolate_graph",
    why="The same for sessions.",
    lasts=Lifetime.OBJECT,
    until="see `FUNCTION_ERRORS`",
)

DATASET_ITERATORS = Patch(
    "tensorflow.python.data.ops.dataset_ops:DatasetV2.__iter__",
    "tensorflow.python.data.ops.dataset_ops:DatasetV1Adapter.__iter__",
    why="`iter(dataset)` in a scope feeds programs; TensorFlow 1's datasets pass the question to the one inside.",
    lasts=Lifetime.SCOPE,
    until="`tf.data` asks the strategy, as `tf.distribute` does for its own datasets",
)

KERAS_MODELS = Patch(
    f"{_KERAS}:Model.__init__",
    why="Models that are made in a scope get the IPU's options and loops.",
    lasts=Lifetime.SCOPE,
    until="Keras asks `keras.distribution` for the trainer",
)

KERAS_NAMES = Patch(
    f"{_KERAS}:Model.__getattr__",
    why="A model that lacks the methods of IPU models says that it was made outside of a scope, while there is a strategy.",
    lasts=Lifetime.OBJECT,
    until="no need to: `AttributeError` then says less",
)

KERAS_FILES = Patch(
    *(f"{module}:{name}" for module, names in _KERAS_FORMATS.items() for name in names.split()),
    why="SavedModels and HDF5 files have the options and stages of IPU models too, as `.keras` files have as assets.",
    lasts=Lifetime.OBJECT,
    until="no need to: Keras asks models for assets of `.keras` files alone",
)

KERAS_METRICS = Patch(
    "tf_keras.src.saving.legacy.saving_utils:try_build_compiled_arguments",
    why="Keras 2 makes the metrics of a model as it is saved before it is trained: they belong on the IPU.",
    lasts=Lifetime.OBJECT,
    until="Keras 2 is gone",
)

KERAS_CALLS = Patch(
    f"{_KERAS}.src.{_NODE}:Node.__init__",
    why="Calls of layers in a `PipelineStage` scope note its stage; Keras has no public name for them.",
    lasts=Lifetime.SCOPE,
    until="`keras.name_scope` is on a call",
)

KERAS_LAYERS = Patch(
    f"{_KERAS}:layers.Layer.__init__",
    why="Layers that are made in a `PipelineStage` scope note its stage.",
    lasts=Lifetime.SCOPE,
    until="`keras.name_scope` is on a layer",
)

OLD_LOSS_SCALING = Patch(
    "tensorflow.python.keras.mixed_precision.loss_scale_optimizer:strategy_supports_loss_scaling",
    why="`LossScaleOptimizer` of `tensorflow.python.keras` goes by a list of TensorFlow's own strategies.",
    lasts=Lifetime.INSTALL,
    until="TensorFlow leaves that Keras out",
)

OLD_COMPILE = Patch(
    "tf_keras:Model.compile" if environment.uses_keras_2() else "keras.src.trainers.trainer:Trainer.compile",
    why="Old scripts pass `steps_per_execution` as a tensor, and optimizers of TensorFlow 1; Keras compares this method.",
    lasts=Lifetime.INSTALL,
    until=_NO_SCRIPTS,
)

OLD_OPTIMIZERS = Patch(
    "keras:optimizers.Optimizer.__init__",
    why="Old scripts pass `lr` to optimizers.",
    lasts=Lifetime.INSTALL,
    until=_NO_SCRIPTS,
)

OLD_APPLY_GRADIENTS = Patch(
    "keras:optimizers.Optimizer.apply_gradients",
    why="Old scripts pass a `name` and `experimental_aggregate_gradients`.",
    lasts=Lifetime.INSTALL,
    until=_NO_SCRIPTS,
)

OLD_INPUTS = Patch(
    "keras:layers.InputLayer.__init__",
    why="Old scripts write `Input(shape=(80))`, with that function from many modules.",
    lasts=Lifetime.INSTALL,
    until=_NO_SCRIPTS,
)

KERAS_LOSS_SCALING = Patch(
    "tf_keras.src.mixed_precision.loss_scale_optimizer:strategy_supports_loss_scaling",
    why="Keras 2 scales losses, and computes in half precision, under a list of TensorFlow's own strategies.",
    lasts=Lifetime.SCOPE,
    until="Keras 2 is gone",
)

KERAS_RECURRENT = Patch(
    "keras:layers.LSTM.inner_loop",
    "keras:layers.GRU.inner_loop",
    why="XLA computes the steps of recurrent layers by loops of small operations; a kernel of the host computes them all.",
    lasts=Lifetime.TRACE,
    until="XLA computes them as fast",
)

KERAS_SELECTIONS = Patch(
    "tf_keras.src.layers.rnn.gru:gru_with_backend_selection",
    "tf_keras.src.layers.rnn.lstm:lstm_with_backend_selection",
    why="The same for Keras 2, where XLA takes what these call a function with for constants, and compiles it at each update.",
    lasts=Lifetime.TRACE,
    until="Keras 2 is gone",
)

TABLE: tuple[Patch, ...] = tuple(value for value in vars().copy().values() if isinstance(value, Patch))


@contextlib.contextmanager
def all_applied(rows: Iterable[tuple[Patch, Make]]) -> Iterator[None]:
    """A block in which each of some rows is applied."""
    with contextlib.ExitStack() as stack:
        for patch, make in rows:
            stack.enter_context(patch.applied(make))
        yield
