"""Only the seam uses private API of TensorFlow and Keras, each function names it, and it exists."""

import ast
import functools
import importlib
import pathlib
import re

import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import auto_control_deps_utils

import tensorflow_ipu
from tensorflow_ipu._tensorflow import functions, patches

ROOT = pathlib.Path(tensorflow_ipu.__file__).parent
SEAM = "_tensorflow/"
KERAS_SEAM = "keras/_keras"  # The adapters, one for each Keras.
PRIVATE_MODULES = {
    SEAM: ("tensorflow.python", "tensorflow.core", "tensorflow.compiler", "tensorflow.tsl"),
    KERAS_SEAM: ("keras.src", "tf_keras.src"),
}

# Exceptions: private attributes that modules outside of the seam use.
ALLOWED = {
    # Checkpoints treat a wrapped optimizer like the optimizer inside, so these overrides delegate to it.
    "optimizers/_ipu_optimizer.py": {
        "_create_or_restore_slot_variable",
        "_deferred_dependencies",
        "_lookup_dependency",
        "_maybe_initialize_trackable",
        "_trackable_children",
    },
    # These are Python's.
    "compat/_script.py": {"_getframe"},
    "feeds/iterator.py": {"_getframe"},
    "analysis/pipelines/report.py": {"_replace"},
    "pipelining/options.py": {"_asdict"},
    "programs/diagnostics/tracebacks.py": {"_getframe"},
    "strategy/ipu_strategy.py": {"_replace"},
}

# Attributes of private classes, though their names do not begin with `_`.
OF_PRIVATE_CLASSES = {"outer_graph"}

# Private attributes of TensorFlow and Keras, though something in this package has the same name.
THEIRS = {
    "_attr_scope_map",
    "_distribution_strategy",
    "_inbound_nodes",
    "_function_type",
    "_functions",
    "_initialized",
    "_jit_compile",
    "_lock",
    "_non_slot_dict",
    "_registry",
    "_shuffle",
    "_slots",
    "_variant_tensor",
}


@functools.cache
def sources():
    """Returns (path below the package, syntax tree) of each module."""
    return [(file.relative_to(ROOT).as_posix(), ast.parse(file.read_text())) for file in sorted(ROOT.rglob("*.py"))]


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_private_modules_are_imported_and_named_by_the_seam_alone():
    """Names of IPU TensorFlow may occur, since `compat` provides them."""
    found = [
        f"{path} imports {name}"
        for path, tree in sources()
        for seam, private in PRIVATE_MODULES.items()
        if not path.startswith(seam)
        for name in imported(tree)
        if name.startswith(private)
    ]
    found += [
        f"{path} names {name}"
        for path, tree in sources()
        if not path.startswith(SEAM) and not path.startswith(KERAS_SEAM)
        for name in private_modules_named(tree)
        if not name.startswith(("tensorflow.compiler.plugin", "tensorflow.python.ipu"))
    ]
    assert not found
    # The check itself can fail.
    tree = ast.parse('sys.modules.get("keras.src.trainers"); "The module `tensorflow.python.keras` is old."')
    assert list(private_modules_named(tree)) == ["keras.src.trainers"]


def private_modules_named(tree):
    """Yields strings that name a private module, such as keys of `sys.modules`.

    Sentences, which have spaces, are ignored.
    """
    private = tuple(f"{module}." for modules in PRIVATE_MODULES.values() for module in modules)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield from [node.value] if node.value.startswith(private) else []


def own_names(trees):
    """Yields the names of functions, classes, attributes and variables that the package defines."""
    for _, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def private_uses(tree):
    """Yields (line, name) of private attributes of anything but `self`, `cls` and `super()`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            value = node.value
            if isinstance(value, ast.Name) and value.id in ("self", "cls"):
                continue
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super":
                continue
            name = node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            name = str(node.args[1].value) if isinstance(node.args[1], ast.Constant) else ""
        else:
            continue
        private = name.startswith("_") and not name.startswith(("__", "_ipu"))
        if private or name in OF_PRIVATE_CLASSES:
            yield node.lineno, name


def test_private_attributes_of_others_are_used_by_the_seam_alone():
    trees = [(path, tree) for path, tree in sources() if not path.startswith(SEAM) and not path.startswith(KERAS_SEAM)]
    own = set(own_names(trees)) - THEIRS - OF_PRIVATE_CLASSES
    found = [
        f"{path}:{line} uses {name}"
        for path, tree in trees
        for line, name in private_uses(tree)
        if name not in own and name not in ALLOWED.get(path, ())
    ]
    assert not found
    # The check itself can fail.
    uses = 'graph._attr_scope(x)\nself._mine\nsuper()._theirs()\ngetattr(graph, "outer_graph", None)'
    assert sorted(name for _, name in private_uses(ast.parse(uses))) == ["_attr_scope", "outer_graph"]


def seam():
    """Yields (path, syntax tree) of the modules of the seam."""
    for path, tree in sources():
        if (path.startswith(SEAM) and path not in (SEAM + "_patch.py", SEAM + "patches.py")) or path.startswith(
            KERAS_SEAM
        ):
            yield path, tree


# "Stands on `X`" is the older form of "Uses the private `X`".
NAMES_PRIVATE_API = re.compile(
    r"[Ss]tands on|Uses the\s+private\s|[Ss]ee `|is public|has no such|copies more|a scatter"
)


def test_each_function_of_the_seam_names_the_private_api_that_it_uses():
    silent = [
        f"{path}: {node.name}"
        for path, tree in seam()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        # The docstring of a module may name what all its functions use.
        and not re.search("\n(Stands on|Uses the private) ", ast.get_docstring(tree) or "")
        # Some functions of an adapter need no private API in one of both versions of Keras.
        and not (path.startswith(KERAS_SEAM) and not list(private_uses(node)))
        # A function may refer to another one that uses the same API.
        and not NAMES_PRIVATE_API.search(ast.get_docstring(node) or "")
    ]
    assert not silent


def test_each_function_of_the_seam_has_a_canary():
    canaries = "\n".join(file.read_text() for file in sorted(pathlib.Path(__file__).parent.glob("test_*.py")))
    missing = [
        f"{path}: {node.name}"
        for path, tree in seam()
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
        if not re.search(rf"\.{node.name}\b", canaries)
    ]
    assert not missing


def test_what_is_replaced_is_there():
    for place in sorted({place for patch in patches.TABLE for place in patch.places}):
        if place.endswith(".__getattr__"):  # The class need not have this method, since the replacement adds it.
            continue
        module, _, path = place.partition(":")
        holder = importlib.import_module(module)
        for name in path.split("."):
            holder = holder[name] if isinstance(holder, dict) else getattr(holder, name)
        assert callable(holder) or isinstance(holder, (list, tuple)), place


@tf.function
def traced(x):
    return x + 1.0


def test_a_concrete_function_is_made_of_the_attributes_that_are_swapped():
    """An attribute that is not swapped could lead to the compiled function; see `functions.keep_from_compiling`."""
    concrete = traced.get_concrete_function(tf.TensorSpec([], tf.float32))
    attributes = """arg_keywords attrs captured_inputs delayed_rewrite_functions first_order_tape_functions func_graph
        function_type garbage_collector higher_order_tape_functions inference_function num_positional_args output_shapes"""
    assert vars(concrete).keys() == {f"_{name}" for name in attributes.split()}


def test_a_function_that_was_to_be_compiled_computes_the_same_when_it_is_not():
    compiled = tf.function(lambda x: x * 2.0, jit_compile=True)
    concrete = compiled.get_concrete_function(tf.TensorSpec([], tf.float32))
    assert concrete.function_def.attr["_XlaMustCompile"].b
    functions.keep_from_compiling(concrete)
    assert not concrete.function_def.attr["_XlaMustCompile"].b
    assert concrete(tf.constant(4.0)).numpy() == 8.0


def test_gradients_are_looked_up_in_the_registry():
    """Tapes call the replacement."""
    registry = patches.CONVOLUTION_GRADIENT
    seen = []

    def counting(original):
        return lambda op, upstream: seen.append(op.type) or original(op, upstream)

    patch = patches.Patch(*registry.places, why="", lasts=patches.Lifetime.TRACE, until="")
    image, kernel = tf.ones([1, 4, 4, 1]), tf.ones([2, 2, 1, 1])
    with patch.applied(counting), tf.GradientTape() as tape:
        tape.watch(kernel)
        gradient = tape.gradient(tf.nn.conv2d(image, kernel, 1, "VALID"), kernel)
    assert seen == ["Conv2D"]
    assert gradient.shape == kernel.shape


# Patterns of the names of TensorFlow's operations that have a resource input. Those of this package begin with `Ipu`.
WRITE_A_VARIABLE = r"""
    Assign\w*VariableOp AssignVariableXlaConcatND Resource(Sparse)?Apply\w+ ResourceScatter\w+ ResourceStridedSliceAssign
    ResourceCountUpTo Rng\w+ Stateful\w+ TPUReshardVariables _TPUReplicate XlaLaunch _XlaCompile
"""
TAKE_NO_VARIABLE = r"""
    \w*BoostedTrees\w+ TensorForest\w+ (Fake)?Queue\w* Barrier\w+ Reader\w+ LookupTable\w+ InitializeTable\w* TensorArray\w+
    Stack\w+ MutexLock \w*Iterator\w* \w*Dataset\w* \w*SummaryWriter Create\w*Writer Write\w+ ImportEvent \w*StatsAggregator\w+
    Delete\w+ Rpc\w+ Collective\w+ ResourceAccumulator\w+ Resource(Create|Initialized|Using)Op (Decode|Encode)\w+
    IsResourceHandleRefCounting MakeWeakResourceHandle
"""
# Readers that only run on TPUs.
FOR_TPUS_ALONE = {"ReadVariableXlaSplitND"}


def readers_of_the_device():
    """Returns the operations that `device/ipu_device.cc` lists as readers of variables."""
    source = pathlib.Path(__file__).parents[2] / "tensorflow_ipu" / "kernels" / "device" / "ipu_device.cc"
    [listed] = re.findall(r"kReaders\[\] =([^;]*);", source.read_text())
    return set(re.findall(r"\w+", listed))


def test_the_device_knows_each_operation_that_only_reads_a_variable():
    """After an operation that is not listed, the next run would overwrite the values of each replica."""
    operations = op_def_pb2.OpList()  # pyright: ignore[reportAttributeAccessIssue]  # The module is generated at run time.
    operations.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    resource = tf.resource.as_datatype_enum
    takes = {op.name for op in operations.op if any(argument.type == resource for argument in op.input_arg)}
    patterns = (WRITE_A_VARIABLE + TAKE_NO_VARIABLE).split()
    no_readers = re.compile("|".join(f"({pattern})" for pattern in patterns) + r"|Ipu\w+")
    readers = readers_of_the_device()
    assert {name for name in takes if not no_readers.fullmatch(name)} - FOR_TPUS_ALONE <= readers
    declared = {name for name in auto_control_deps_utils.RESOURCE_READ_OPS if not name.startswith("Ipu")}
    assert declared <= readers
