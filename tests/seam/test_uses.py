"""What TensorFlow and Keras keep private is used in one place, and what that place stands on is there."""

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

# Attributes of objects of TensorFlow and Keras that stand outside of the seam all the same.
ALLOWED = {
    # A wrapper of an optimizer is to checkpoints what the optimizer inside is, so these overrides hand on to it.
    "optimizers/_ipu_optimizer.py": {
        "_create_or_restore_slot_variable",
        "_deferred_dependencies",
        "_lookup_dependency",
        "_maybe_initialize_trackable",
        "_trackable_children",
    },
    # Python's own.
    "compat/_script.py": {"_getframe"},
    "feeds/iterator.py": {"_getframe"},
    "analysis/pipelines/report.py": {"_replace"},
    "pipelining/options.py": {"_asdict"},
    "programs/diagnostics/tracebacks.py": {"_getframe"},
    "strategy/ipu_strategy.py": {"_replace"},
}

# Of classes that have no public name, though these attributes of theirs begin with no `_`.
OF_PRIVATE_CLASSES = {"outer_graph"}

# Of TensorFlow and Keras, though something of the package has the same name.
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
    """(path below the package, its syntax tree)."""
    return [(file.relative_to(ROOT).as_posix(), ast.parse(file.read_text())) for file in sorted(ROOT.rglob("*.py"))]


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_private_modules_are_imported_and_named_by_the_seam_alone():
    """Those of IPU TensorFlow are this package's."""
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
    """Strings that name a private module, such as what is looked up in `sys.modules`; a sentence may name one too."""
    private = tuple(f"{module}." for modules in PRIVATE_MODULES.values() for module in modules)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield from [node.value] if node.value.startswith(private) else []


def own_names(trees):
    """Names that the package gives to things of its own: functions, classes, attributes that it sets of itself."""
    for _, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def private_uses(tree):
    """(line, name) of private attributes of others: of what is neither `self` nor `super()`."""
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
    """(path, syntax tree) of the modules of the seam."""
    for path, tree in sources():
        if (path.startswith(SEAM) and path not in (SEAM + "_patch.py", SEAM + "patches.py")) or path.startswith(
            KERAS_SEAM
        ):
            yield path, tree


def test_each_function_of_the_seam_says_what_it_stands_on():
    silent = [
        f"{path}: {node.name}"
        for path, tree in seam()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not (ast.get_docstring(tree) or "").count("\nStands on")
        # Adapters have functions that stand on public names alone in one Keras.
        and not (path.startswith(KERAS_SEAM) and not list(private_uses(node)))
        # One that says so for several of its kind is named by the others, or stands at the head of them.
        and not re.search(r"[Ss]tands on|; see `|[Ss]ee `|is public|has no such|copies more|a scatter",
                          ast.get_docstring(node) or "")
    ]  # fmt: skip
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
        if place.endswith(".__getattr__"):  # What classes of others lack; it calls theirs where they have one.
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
    """Another one would lead to the function as it was compiled; see `functions.keep_from_compiling`."""
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
    """What is replaced there is what tapes call."""
    registry = patches.CONVOLUTION_GRADIENT
    seen = []

    def counting(plain):
        return lambda op, upstream: seen.append(op.type) or plain(op, upstream)

    other = patches.Patch(*registry.places, why="", lasts=patches.Lifetime.TRACE, until="")
    image, kernel = tf.ones([1, 4, 4, 1]), tf.ones([2, 2, 1, 1])
    with other.applied(counting), tf.GradientTape() as tape:
        tape.watch(kernel)
        gradient = tape.gradient(tf.nn.conv2d(image, kernel, 1, "VALID"), kernel)
    assert seen == ["Conv2D"]
    assert gradient.shape == kernel.shape


# What operations of TensorFlow's do with a resource that they take. Those that are the package's own begin with `Ipu`.
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
# Readers that no device but a TPU sees.
FOR_TPUS_ALONE = {"ReadVariableXlaSplitND"}


def readers_of_the_device():
    """The operations of which `device/ipu_device.cc` knows that they only read a variable."""
    source = pathlib.Path(__file__).parents[2] / "tensorflow_ipu" / "kernels" / "device" / "ipu_device.cc"
    [listed] = re.findall(r"kReaders\[\] =([^;]*);", source.read_text())
    return set(re.findall(r"\w+", listed))


def test_the_device_knows_each_operation_that_only_reads_a_variable():
    """One that it does not know makes the next run overwrite the values that replicas have of their own."""
    known = op_def_pb2.OpList()  # pyright: ignore[reportAttributeAccessIssue]  # Made when it is imported.
    known.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    takes = {op.name for op in known.op if any(one.type == tf.resource.as_datatype_enum for one in op.input_arg)}
    others = re.compile("|".join(f"({one})" for one in (WRITE_A_VARIABLE + TAKE_NO_VARIABLE).split()) + r"|Ipu\w+")
    readers = readers_of_the_device()
    assert {name for name in takes if not others.fullmatch(name)} - FOR_TPUS_ALONE <= readers
    declared = {name for name in auto_control_deps_utils.RESOURCE_READ_OPS if not name.startswith("Ipu")}
    assert declared <= readers
