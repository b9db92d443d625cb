"""The compatibility layer is installed once, for all names of Keras, and uninstalled completely; its list of names."""

import importlib
import itertools
import sys
import threading
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from tensorflow.python.ops import array_ops, control_flow_ops
from tensorflow.python.util.lazy_loader import KerasLazyLoader

from tensorflow_ipu import compat
from tensorflow_ipu.compat import _listing, _names, _script
from tensorflow_ipu.compat._listing import State
from tensorflow_ipu.compat._names import Absent


def _touch_everything():
    for module in (*_names.MODULES, *_names.ALIASES):
        importlib.import_module(module)


def _state():
    holders = (array_ops, control_flow_ops, keras, keras.Model, keras.layers, keras.optimizers.Optimizer)
    return [dict(vars(holder)) for holder in (*holders, sys.modules["tensorflow.python"])]


def test_uninstall_leaves_modules_as_they_were():
    compat.install()
    _touch_everything()
    compat.uninstall()  # The first import also loads modules of TensorFlow and Keras, which stay.
    modules, path, state = set(sys.modules), list(sys.meta_path), _state()
    compat.install()
    _touch_everything()
    assert set(sys.modules) > modules
    compat.uninstall()
    assert set(sys.modules) == modules
    assert sys.meta_path == path
    assert _state() == state
    assert not hasattr(tf.keras, "ipu")


def test_install_twice_is_undone_by_one_uninstall():
    compat.install()
    compat.install()
    compat.uninstall()
    assert not any(isinstance(finder, _script.OldModuleFinder) for finder in sys.meta_path)
    compat.uninstall()
    with pytest.raises(ImportError):
        importlib.import_module("tensorflow.python.ipu")
    assert not hasattr(keras, "ipu")
    assert not hasattr(control_flow_ops, "while_loop")


def test_threads_that_install_at_once_add_one_finder(refused):
    barrier = threading.Barrier(8)

    def work():
        barrier.wait(60)
        compat.install()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    try:
        assert sum(isinstance(finder, _script.OldModuleFinder) for finder in sys.meta_path) == 1
        assert keras.optimizers.SGD(lr=0.5).learning_rate == 0.5
    finally:
        compat.uninstall()
    refused(ValueError, "lr", keras.optimizers.SGD, lr=0.5)


def test_failed_install_changes_nothing(monkeypatch):
    state = _state()
    monkeypatch.setattr(_names, "ATTRIBUTES", (*_names.ATTRIBUTES, ("keras.no_such_module", "x", "keras:x")))
    with pytest.raises(ModuleNotFoundError):
        compat.install()
    assert _state() == state
    assert not any(isinstance(finder, _script.OldModuleFinder) for finder in sys.meta_path)


# Import statements, and the expression that is Keras after them.
SPELLINGS = {
    "import keras": "keras",
    "import tensorflow": "tensorflow.keras",
    "import tensorflow.keras": "tensorflow.keras",
    "import tensorflow.keras as k": "k",
    "from tensorflow import keras": "keras",
    "from tensorflow.keras.layers import Dense; import tensorflow as tf": "tf.keras",
    "import tensorflow.compat.v1 as tf": "tf.keras",
    "from tensorflow.compat.v2 import keras": "keras",
}
# Import statements that need the layer, and the expression that is `keras.ipu` after them.
WITH_IPU = {
    "from keras import ipu": "ipu",
    "from tensorflow.keras import ipu, layers": "ipu",
    "from tensorflow.compat.v1.keras import ipu": "ipu",
    "import keras.ipu.optimizers": "keras.ipu",
    "import tensorflow.keras.ipu.optimizers": "tensorflow.keras.ipu",
    "import tensorflow.keras as k": "k.ipu",
}


def _tensorflows_own():
    return [name for name in sys.modules if name == "tensorflow.keras" or name.startswith("tensorflow.keras.")]


@pytest.fixture
def unused_keras():
    """Resets TensorFlow to the state before the first use of `tf.keras`."""
    original = vars(tf)["keras"]
    modules = {name: sys.modules.pop(name) for name in _tensorflows_own()}
    tf.__dict__["keras"] = KerasLazyLoader(vars(tf))
    yield
    for name in _tensorflows_own():
        del sys.modules[name]
    sys.modules.update(modules)
    tf.__dict__["keras"] = original


def _run(code):
    namespace = {}
    exec(code, namespace)
    return namespace


def _check(namespace, spelling):
    module = eval(spelling, namespace)
    assert module.ipu is sys.modules["keras.ipu"]
    assert module.ipu.optimizers.ALSOptimizer is sys.modules["keras.ipu"].optimizers.ALSOptimizer
    assert module.optimizer_v2.adam.Adam is keras.optimizers.Adam
    assert module.mixed_precision.policy.Policy is keras.mixed_precision.Policy
    assert module.Input(shape=(80)).shape == module.layers.Input(80).shape == (None, 80)


@pytest.mark.parametrize(
    ("first", "second", "installation"),
    [
        *((*pair, "between") for pair in itertools.permutations(SPELLINGS, 2)),
        *((first, "import tensorflow.keras", when) for first in SPELLINGS for when in ("before", "after")),
    ],
)
@pytest.mark.usefixtures("unused_keras")
def test_keras_has_ipu_after_any_two_imports(first, second, installation):
    try:
        if installation == "before":
            compat.install()
        first_names = _run(first)
        if installation == "between":
            compat.install()
        second_names = _run(second)
        if installation == "after":
            compat.install()
        _check(first_names, SPELLINGS[first])
        _check(second_names, SPELLINGS[second])
        for code, spelling in WITH_IPU.items():
            assert eval(spelling, _run(code)) is sys.modules["keras.ipu"]
    finally:
        compat.uninstall()
    assert not hasattr(keras, "ipu")
    assert not hasattr(sys.modules["keras._tf_keras.keras"], "ipu")
    assert not hasattr(sys.modules.get("tensorflow.keras"), "ipu")


@pytest.mark.parametrize("code", [*WITH_IPU])
@pytest.mark.usefixtures("unused_keras", "installed")
def test_keras_has_ipu_after_a_first_import_that_names_it(code):
    assert eval(WITH_IPU[code], _run(code)) is sys.modules["keras.ipu"]
    _check({"tf": tf}, "tf.keras")


@pytest.mark.usefixtures("unused_keras")
def test_modules_that_tensorflow_made_before_the_installation_stay_in_use():
    module = importlib.import_module("tensorflow.keras")
    compat.install()
    try:
        assert importlib.import_module("tensorflow.keras") is module is tf.keras
    finally:
        compat.uninstall()
    assert sys.modules["tensorflow.keras"] is module


@pytest.mark.usefixtures("unused_keras", "installed")
def test_module_that_keras_does_not_have_is_not_found_by_any_spelling(refused):
    for spelling in ("tensorflow.keras", "tensorflow.compat.v1.keras"):
        refused(ModuleNotFoundError, f"{spelling}.no_such", importlib.import_module, f"{spelling}.no_such.thing")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "porting.md"


def test_page_shows_the_names_as_they_are_now():
    assert _listing.markdown() in PAGE.read_text(), "the names have changed: run `make names`"


def test_every_name_of_the_table_is_listed_once_with_what_it_is():
    entries = _listing.entries()
    assert len({entry.full for entry in entries}) == len(entries)
    listed = {(entry.module, entry.name): entry for entry in entries}
    for module in _names.MODULES:
        short = module.replace("tensorflow.python.ipu", "ipu")
        if not short.startswith(("ipu", "keras.ipu", "libpvti")) or short.startswith("ipu.keras"):
            continue
        for name, target in _names.MODULES[module].names.items():
            exists = listed[short, name].state in (State.WORKS, State.RECORDED)
            assert exists is not isinstance(target, Absent), (module, name)
            if exists:
                assert name in _names.existing(module)


def test_every_option_of_the_configuration_is_listed_and_what_changes_no_result_exists():
    options = {entry.name: entry for entry in _listing.entries() if entry.name.startswith("IPUConfig.")}
    assert len(options) == 57
    assert options["IPUConfig.auto_select_ipus"].state is State.WORKS
    assert options["IPUConfig.io_tiles.num_io_tiles"].note == "used only by the machine's report"
    assert options["IPUConfig.compilation_poplar_options"].state is State.RECORDED
    targets = {target for old in _names.MODULES.values() for target in old.names.values()}
    assert targets >= _names.RECORDED.keys()
