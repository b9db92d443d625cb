"""The table of the functions that the package replaces in TensorFlow and Keras, with reasons and lifetimes.

`TABLE` lists all patches. A patch may have several holders at a time, such as two threads that trace or two graphs that
live. The first holder replaces the functions, and the end of the last one restores them:

    with OPERATIONS.applied(make): ...      # Until the block ends.
    CAPTURES.apply_while(graph, make)       # As long as `graph` lives.
    AUTOGRAPH_RULES.apply_for_good(make)    # Until the process ends.

`make(original)` returns the replacement. If other code has replaced the same function meanwhile, it is not restored. A
`Hook` is a function in a list of callbacks of TensorFlow instead.
"""

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

# A function from an original to its replacement. For a `Hook`, it is the callback itself, with TensorFlow's argument.
Make: TypeAlias = "Callable[[Any], Any]"

_NOTHING = object()
_PATCHES = "_ipu_patches"  # The attribute of an object that lists the patches that are applied while it lives.


class Lifetime(enum.Enum):
    """The time during which a patch replaces its originals."""

    IMPORT = "from the import of the package on"
    TRACE = "while a program is traced"
    SCOPE = "in the scope of a strategy, or of a pipeline stage"
    OBJECT = "while an object lives that needs it"
    INSTALL = "from `compat.install` to `compat.uninstall`"


# Guards the holders and replacements of all patches. It is reentrant: `make` may perform a due action of `lifetimes`,
# which releases another patch.
_lock = threading.RLock()


class Patch:
    """Functions at `places` (`module:attribute.attribute`) that are replaced while the patch is held; thread-safe."""

    def __init__(self, *places: str, why: str, lasts: Lifetime, until: str) -> None:
        self.places = places
        self.why = why
        self.lasts = lasts
        self.until = until
        self._holders: set[object] = set()
        self._replaced: list[tuple[object, str, object, object]] = []  # (owner, name, original, replacement)
        self._made: dict[str, tuple[Make, Any, Any]] = {}  # place: (make, original, replacement)

    @property
    def is_applied(self) -> bool:
        """True while the originals are replaced."""
        lifetimes.call_due()
        return bool(self._replaced)

    @property
    def is_loaded(self) -> bool:
        """True if the modules of all places are imported already."""
        return all(place.partition(":")[0] in sys.modules for place in self.places)

    @contextlib.contextmanager
    def applied(self, make: Make) -> Iterator[None]:
        """Replaces the originals during the block, on all threads."""
        token = object()
        self._hold(token, make)
        try:
            yield
        finally:
            self._release(token)

    def apply_while(self, owner: object, make: Make) -> None:
        """Replaces the originals as long as `owner` lives; a second call for the same owner does nothing."""
        if self in _LivePatches.of(owner):
            return
        token = object()
        self._hold(token, make)
        with _lock:
            applied = _LivePatches.of(owner)
            setattr(owner, _PATCHES, applied)
            is_first = applied.setdefault(self, token) is token  # False if another thread was faster.
        if is_first:
            lifetimes.call_later(owner, lambda: self._release(token))
        else:
            self._release(token)

    def apply_for_good(self, make: Make) -> None:
        """Replaces the originals until the process ends."""
        self._hold(None, make)

    def _hold(self, token: object, make: Make) -> None:
        located = [_located(place) for place in self.places]  # Before `_lock`: an import takes other locks.
        with _lock:
            self._holders.add(token)
            if not self._replaced:
                self._apply(located, make)

    def _release(self, token: object) -> None:
        with _lock:
            self._holders.discard(token)
            if self._replaced and not self._holders:
                self._undo()

    def _apply(self, located: list[tuple[object, str]], make: Make) -> None:
        for place, (owner, name) in zip(self.places, located, strict=True):
            own_value = _own(owner, name)
            original = getattr(owner, name, None) if own_value is _NOTHING else own_value
            record = self._made.get(place)
            if record is None or record[:2] != (make, original):
                record = self._made[place] = (make, original, make(original))
            _write(owner, name, record[2])
            self._replaced.append((owner, name, own_value, record[2]))

    def _undo(self) -> None:
        while self._replaced:
            owner, name, own_value, replacement = self._replaced.pop()
            # If other code has replaced our replacement, its function stays and goes on calling ours.
            if _own(owner, name) is not replacement:
                continue
            if own_value is _NOTHING:
                delattr(owner, name)
            else:
                _write(owner, name, own_value)


class _LivePatches(dict[Patch, object]):
    """The patches that are applied while `owner` lives, with their tokens. A copy of the owner has none."""

    def __init__(self, owner: object = None) -> None:
        self.owner = None if owner is None else weakref.ref(owner)

    def __reduce__(self) -> tuple[type[_LivePatches], tuple[()]]:
        return _LivePatches, ()

    @staticmethod
    def of(owner: object) -> _LivePatches:
        live: _LivePatches | None = getattr(owner, _PATCHES, None)
        return live if live is not None and live.owner is not None and live.owner() is owner else _LivePatches(owner)


class Hook(Patch):
    """A function in a list of TensorFlow's callbacks. It stays in the list, and acts only while the hook is applied."""

    # The function is never removed. If it were removed while TensorFlow iterates over the list, TensorFlow would skip
    # the next one.

    def _apply(self, located: list[tuple[object, str]], make: Make) -> None:
        self._act = make
        for owner, name in located:
            hooks = getattr(owner, name)
            if self._called not in hooks:
                hooks.append(self._called)
            self._replaced.append((owner, name, None, self._called))

    def _undo(self) -> None:
        self._replaced.clear()

    def _called(self, subject: object) -> None:
        if self._replaced:
            self._act(subject)


class Changes:
    """Changes to modules and classes that can all be undone; not thread-safe."""

    def __init__(self) -> None:
        self._originals: list[tuple[object, str, object]] = []
        self._applied = contextlib.ExitStack()

    def apply(self, patch: Patch, make: Make) -> None:
        """Applies a patch until `undo`."""
        self.enter(patch.applied(make))

    def enter(self, context: contextlib.AbstractContextManager[object]) -> None:
        """Enters a context, which `undo` exits."""
        self._applied.enter_context(context)

    def put(self, holder: object, name: str, value: object) -> None:
        """Sets an attribute of a module or class."""
        self._originals.append((holder, name, vars(holder).get(name, _NOTHING)))
        setattr(holder, name, value)

    def undo(self) -> None:
        """Undoes all changes, the last one first."""
        self._applied.close()
        while self._originals:
            holder, name, original = self._originals.pop()
            if original is _NOTHING:
                delattr(holder, name)
            else:
                setattr(holder, name, original)


def _located(place: str) -> tuple[object, str]:
    """Returns the module, class, object or dict that has the attribute at `place`, and the attribute's name."""
    module, _, path = place.partition(":")
    holder: object = importlib.import_module(module)
    *way, name = path.split(".")
    for step in way:
        holder = holder[step] if isinstance(holder, dict) else getattr(holder, step)
    return holder, name


def _own(holder: object, name: str) -> Any:
    """Returns an attribute of `holder`; `_NOTHING` if `holder` is a class that only inherits the attribute."""
    if isinstance(holder, dict):
        return holder[name]
    return vars(holder).get(name, _NOTHING) if inspect.isclass(holder) else getattr(holder, name)


def _write(holder: object, name: str, value: object) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


__all__ = ["TABLE", "Changes", "Hook", "Lifetime", "Make", "Patch", "all_applied"]

_NO_SCRIPTS = "nobody uses scripts of IPU TensorFlow any more"
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
    why="Converting this package would take seconds of the first trace, and errors would show its lines.",
    lasts=Lifetime.IMPORT,
    until="AutoGraph accepts rules of packages",
)

JIT_COMPILE_AUTO = Patch(
    "keras.src.trainers.trainer:Trainer._resolve_auto_jit_compile",
    why="Keras compiles models if TensorFlow lists devices besides CPUs. Models outside of a scope must not change.",
    lasts=Lifetime.IMPORT,
    until="Keras checks the device of the model",
)

GLOBAL_SEED = Patch(
    "tensorflow.python.eager.context:Context._set_global_seed",
    why="Layers of Keras 2 follow `tf.random.set_seed`, so IPUs must too. Nothing is replaced with Keras 3.",
    lasts=Lifetime.IMPORT,
    until="TensorFlow has a callback for `tf.random.set_seed`",
)

OPERATIONS = Patch(
    "tensorflow.python.framework.ops:Graph._create_op_helper",
    why="Operations of layers and checks are marked for host kernels, whichever function adds them to a graph.",
    lasts=Lifetime.TRACE,
    until="graphs have a callback for new operations",
)

CONVOLUTION_GRADIENT = Patch(
    "tensorflow.python.framework.ops:gradient_registry._registry.Conv2D.type",
    why="XLA:CPU has fast code only for convolutions outside of loops; see `programs/_host_kernels.py`.",
    lasts=Lifetime.TRACE,
    until="https://github.com/openxla/xla/blob/main/xla/service/cpu/conv_canonicalization.cc looks into loops",
)

PRINT = Patch(
    "tensorflow.python.ops.gen_logging_ops:print_v2",
    why="XLA cannot print, so the host does. `tf.print` itself is not replaced, since scripts may import it by name.",
    lasts=Lifetime.TRACE,
    until="TensorFlow's bridge to XLA runs `PrintV2` on the host",
)

PRINTED_TEXT = Patch(
    "tensorflow.python.ops.string_ops:string_format",
    why="XLA has no strings, so the host formats the text that `tf.print` prints.",
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
    why="XLA's random operations cannot be seeded, and replicas share their stream. Here, each replica has a seed.",
    lasts=Lifetime.TRACE,
    until="XLA:CPU accepts a seed for each run and device",
)

GENERATOR_REPLICAS = Patch(
    "tensorflow.python.ops.stateful_random_ops:Generator._preprocess_key",
    why="A `tf.random.Generator` draws from the replica's stream. Replica 0 draws as without a strategy.",
    lasts=Lifetime.TRACE,
    until="the contexts of `tf.distribute` select the random stream of a replica",
)

FUSED_BATCH_NORMS = Patch(
    *(
        f"tensorflow.python.ops.gen_nn_ops:{name}"
        for name in ("_fused_batch_norm", "fused_batch_norm_v2", "fused_batch_norm_v3")
    ),
    *(f"tensorflow:raw_ops.FusedBatchNorm{version}" for version in ("", "V2", "V3")),
    why="Replicas share statistics (`distributed_batch_norm_replica_group_size`), and weights may be float16.",
    lasts=Lifetime.TRACE,  # And while `compat` is installed, for old scripts that compute with float16 on the host.
    until="TensorFlow's operation accepts a group of replicas",
)

KERAS_MOMENTS = Patch(
    "keras:layers.BatchNormalization._moments",
    why="Replicas share statistics in Keras's layer too, whose `synchronized` does not support groups.",
    lasts=Lifetime.TRACE,
    until="Keras's `synchronized` accepts a number of replicas",
)

KERAS_SEEDS = Patch(
    "keras:random.SeedGenerator.next",
    why="All replicas have the same seed generator, but each must drop different units.",
    lasts=Lifetime.TRACE,
    until="`SeedGenerator` uses the replica's context of `tf.distribute`",
)

GRADIENT_LOOKUPS = Patch(
    "tensorflow.python.framework.ops:gradient_registry.__class__",
    why="Gradients get the shard and the arithmetic of their operations, while a graph lives that sets them.",
    lasts=Lifetime.OBJECT,
    until="gradients inherit attributes of operations, as they inherit the device by `colocate_gradients_with_ops`",
)

OWN_GRADIENTS = Patch(
    "tensorflow.python.framework.ops:get_gradient_function",
    why="Like `GRADIENT_LOOKUPS`, for operations whose gradient is not in the registry, such as calls of functions.",
    lasts=Lifetime.OBJECT,
    until="see `GRADIENT_LOOKUPS`",
)

RECORDED_OPERATIONS = Patch(
    "tensorflow.python.eager.execute:record_gradient",
    why="The gradient of a tape only sees recorded attributes of an operation, so the shard is recorded too.",
    lasts=Lifetime.OBJECT,
    until="see `GRADIENT_LOOKUPS`",
)

GRAPH_RANGES = Hook(
    f"{_FUNCTIONS}.transform:FUNC_GRAPH_TRANSFORMS",
    why="XLA would compile a program again for each length of an unused range; see `programs/_trace_context.py`.",
    lasts=Lifetime.TRACE,
    until="TensorFlow's bridge to XLA ignores unused ranges",
)

COMPILED_CALLERS = Hook(
    f"{_FUNCTIONS}.transform:CONCRETE_FUNCTION_CALLBACKS",
    why="A function that calls a program must not be compiled for the host together with it, while its graph lives.",
    lasts=Lifetime.OBJECT,
    until="TensorFlow does not compile operations that are placed on another device",
)

FUNCTION_CALLS = Patch(
    f"{_FUNCTIONS}.atomic_function:make_call_op_in_graph",
    why="A loop must capture the state variable of a feed once, from its own function. Two captures lose an update.",
    lasts=Lifetime.TRACE,
    until="loops capture what a called function captures through the enclosing function",
)

CUSTOM_GRADIENTS = Patch(
    "tensorflow.python.framework.registry:Registry.register",
    why="TensorFlow keeps each `tf.custom_gradient` of a graph, with its feeds, for ever. It must end with its graph.",
    lasts=Lifetime.TRACE,
    until="`custom_gradient._graph_mode_decorator` registers nothing that outlives its graph",
)

CAPTURES = Patch(
    "tensorflow.python.framework.func_graph:FuncGraph.capture",
    why="A program that captures a tensor of its host part reads the tensor as a result of that part.",
    lasts=Lifetime.OBJECT,
    until="a graph calls the tensor's graph when it captures a tensor",
)

PARTS_OF_HOST = Hook(
    f"{_FUNCTIONS}.transform:CONCRETE_FUNCTION_CALLBACKS",
    why="The functions that the host runs for a program are defined at the end of the trace.",
    lasts=Lifetime.OBJECT,
    until="for good: TensorFlow has this hook for its debugger",
)

ACCUMULATION_LOOPS = Hook(
    f"{_FUNCTIONS}.transform:FUNC_GRAPH_TRANSFORMS",
    why="Checks at the end of the trace that an accumulating optimizer is in a loop of the right number of iterations.",
    lasts=Lifetime.OBJECT,
    until="for good: TensorFlow has this hook for graphs",
)

FUNCTION_ERRORS = Patch(
    f"{_FUNCTIONS}.atomic_function:InterpolateRuntimeError.__exit__",
    why="An error of a program begins with its message, not with the stack trace and tags of a node.",
    lasts=Lifetime.OBJECT,
    until="TensorFlow puts the description of a node after the message",
)

SESSION_ERRORS = Patch(
    "tensorflow.python.framework.error_interpolation:interpolate_graph",
    why="Like `FUNCTION_ERRORS`, for errors of sessions.",
    lasts=Lifetime.OBJECT,
    until="see `FUNCTION_ERRORS`",
)

DATASET_ITERATORS = Patch(
    "tensorflow.python.data.ops.dataset_ops:DatasetV2.__iter__",
    "tensorflow.python.data.ops.dataset_ops:DatasetV1Adapter.__iter__",
    why="`iter(dataset)` in a scope returns an infeed. Datasets of TensorFlow 1 wrap one of TensorFlow 2.",
    lasts=Lifetime.SCOPE,
    until="`tf.data` calls the strategy, as `tf.distribute` does for its datasets",
)

KERAS_MODELS = Patch(
    f"{_KERAS}:Model.__init__",
    why="Models created in a scope get the options and loops of IPU models.",
    lasts=Lifetime.SCOPE,
    until="Keras takes the trainer from `keras.distribution`",
)

KERAS_NAMES = Patch(
    f"{_KERAS}:Model.__getattr__",
    why="If a method of IPU models is missing, the error says that the model was created outside of a scope.",
    lasts=Lifetime.OBJECT,
    until="for good: without it, `AttributeError` has no advice",
)

KERAS_FILES = Patch(
    *(f"{module}:{name}" for module, names in _KERAS_FORMATS.items() for name in names.split()),
    why="SavedModels and HDF5 files store options and stages of IPU models, as `.keras` files do by assets.",
    lasts=Lifetime.OBJECT,
    until="for good: Keras supports assets in `.keras` files only",
)

KERAS_METRICS = Patch(
    "tf_keras.src.saving.legacy.saving_utils:try_build_compiled_arguments",
    why="If a model is saved before it is trained, Keras 2 creates its metrics then. They must be on the IPU.",
    lasts=Lifetime.OBJECT,
    until="Keras 2 is gone",
)

KERAS_CALLS = Patch(
    f"{_KERAS}.src.{_NODE}:Node.__init__",
    why="Calls of layers in a `PipelineStage` scope record the stage. Keras has no public class of calls.",
    lasts=Lifetime.SCOPE,
    until="Keras records `keras.name_scope` on a call",
)

KERAS_LAYERS = Patch(
    f"{_KERAS}:layers.Layer.__init__",
    why="Layers created in a `PipelineStage` scope record the stage.",
    lasts=Lifetime.SCOPE,
    until="Keras records `keras.name_scope` on a layer",
)

OLD_LOSS_SCALING = Patch(
    "tensorflow.python.keras.mixed_precision.loss_scale_optimizer:strategy_supports_loss_scaling",
    why="`LossScaleOptimizer` of `tensorflow.python.keras` only accepts certain strategies of TensorFlow.",
    lasts=Lifetime.INSTALL,
    until="TensorFlow no longer includes that Keras",
)

OLD_COMPILE = Patch(
    "tf_keras:Model.compile" if environment.uses_keras_2() else "keras.src.trainers.trainer:Trainer.compile",
    why="Old scripts pass a tensor as `steps_per_execution`, or a TensorFlow 1 optimizer. Keras does not compile a loaded"
    " model whose class overrides `compile`.",
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
    why="Old scripts pass `name` and `experimental_aggregate_gradients`.",
    lasts=Lifetime.INSTALL,
    until=_NO_SCRIPTS,
)

OLD_INPUTS = Patch(
    "keras:layers.InputLayer.__init__",
    why="Old scripts write `Input(shape=(80))`, and import `Input` from many modules.",
    lasts=Lifetime.INSTALL,
    until=_NO_SCRIPTS,
)

KERAS_LOSS_SCALING = Patch(
    "tf_keras.src.mixed_precision.loss_scale_optimizer:strategy_supports_loss_scaling",
    why="Keras 2 supports loss scaling and half precision only with certain strategies of TensorFlow.",
    lasts=Lifetime.SCOPE,
    until="Keras 2 is gone",
)

KERAS_RECURRENT = Patch(
    "keras:layers.LSTM.inner_loop",
    "keras:layers.GRU.inner_loop",
    why="XLA computes each step of recurrent layers by small operations. One host kernel computes all steps faster.",
    lasts=Lifetime.TRACE,
    until="XLA is as fast",
)

KERAS_SELECTIONS = Patch(
    "tf_keras.src.layers.rnn.gru:gru_with_backend_selection",
    "tf_keras.src.layers.rnn.lstm:lstm_with_backend_selection",
    why="Like `KERAS_RECURRENT`. XLA also treats the arguments as constants, and compiles again after each update.",
    lasts=Lifetime.TRACE,
    until="Keras 2 is gone",
)

TABLE: tuple[Patch, ...] = tuple(value for value in vars().copy().values() if isinstance(value, Patch))


@contextlib.contextmanager
def all_applied(rows: Iterable[tuple[Patch, Make]]) -> Iterator[None]:
    """Applies each patch with its `make` during the block."""
    with contextlib.ExitStack() as stack:
        for patch, make in rows:
            stack.enter_context(patch.applied(make))
        yield
