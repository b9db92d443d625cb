"""Keras has its IPU names by whatever spelling it is imported, in any order of imports and of the installation.

TensorFlow makes up to four modules that are Keras: `keras`, the one behind `tf.keras`, a stand-in for it until it is
used, and another one for `import tensorflow.keras`, which then takes the place of `tf.keras`.
"""

import importlib
import itertools
import sys

import keras
import pytest
import tensorflow as tf
from tensorflow.python.util.lazy_loader import KerasLazyLoader

from tensorflow_ipu import compat

# What scripts write, and where they have Keras then.
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
# What they write that needs the layer, and what is one with `keras.ipu` then.
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
    """TensorFlow as if nobody had asked it for Keras yet."""
    before = vars(tf)["keras"]
    modules = {name: sys.modules.pop(name) for name in _tensorflows_own()}
    tf.__dict__["keras"] = KerasLazyLoader(vars(tf))
    yield
    for name in _tensorflows_own():
        del sys.modules[name]
    sys.modules.update(modules)
    tf.__dict__["keras"] = before


def _run(code):
    namespace = {}
    exec(code, namespace)
    return namespace


def _check(namespace, spelling):
    found = eval(spelling, namespace)
    assert found.ipu is sys.modules["keras.ipu"]
    assert found.ipu.optimizers.ALSOptimizer is sys.modules["keras.ipu"].optimizers.ALSOptimizer
    assert found.optimizer_v2.adam.Adam is keras.optimizers.Adam
    assert found.mixed_precision.policy.Policy is keras.mixed_precision.Policy
    assert found.Input(shape=(80)).shape == found.layers.Input(80).shape == (None, 80)


@pytest.mark.parametrize(
    ("first", "second", "installation"),
    [
        *((*pair, "between") for pair in itertools.permutations(SPELLINGS, 2)),
        *((one, "import tensorflow.keras", when) for one in SPELLINGS for when in ("before", "after")),
    ],
)
@pytest.mark.usefixtures("unused_keras")
def test_keras_has_ipu_after_any_two_imports(first, second, installation):
    try:
        if installation == "before":
            compat.install()
        one = _run(first)
        if installation == "between":
            compat.install()
        two = _run(second)
        if installation == "after":
            compat.install()
        _check(one, SPELLINGS[first])
        _check(two, SPELLINGS[second])
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
def test_modules_that_tensorflow_made_before_the_door_opened_stay_in_use():
    made = importlib.import_module("tensorflow.keras")
    compat.install()
    try:
        assert importlib.import_module("tensorflow.keras") is made is tf.keras
    finally:
        compat.uninstall()
    assert sys.modules["tensorflow.keras"] is made


@pytest.mark.usefixtures("unused_keras", "installed")
def test_module_that_keras_does_not_have_is_not_found_by_any_spelling(refused):
    for spelling in ("tensorflow.keras", "tensorflow.compat.v1.keras"):
        refused(ModuleNotFoundError, f"{spelling}.no_such", importlib.import_module, f"{spelling}.no_such.thing")
