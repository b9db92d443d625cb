"""The compatibility layer is installed once, and uninstalled without a trace."""

import importlib
import sys
import threading

import keras
import pytest
import tensorflow as tf
from tensorflow.python.ops import array_ops, control_flow_ops

from tensorflow_ipu import compat
from tensorflow_ipu.compat import _names, _script


def _touch_everything():
    for module in (*_names.MODULES, *_names.ALIASES):
        importlib.import_module(module)


def _state():
    return [
        dict(vars(holder))
        for holder in (
            array_ops,
            control_flow_ops,
            keras,
            keras.Model,
            keras.layers,
            keras.optimizers.Optimizer,
            sys.modules["tensorflow.python"],
        )
    ]


def test_uninstall_leaves_modules_as_they_were():
    compat.install()
    _touch_everything()
    compat.uninstall()  # What is left of the first time are modules of TensorFlow and Keras themselves.
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


def test_threads_that_install_at_once_open_one_door(refused):
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


def test_failed_install_leaves_the_door_shut(monkeypatch):
    state = _state()
    monkeypatch.setattr(_names, "ATTRIBUTES", (*_names.ATTRIBUTES, ("keras", "x", "keras.no_such_module:x")))
    with pytest.raises(ModuleNotFoundError):
        compat.install()
    assert _state() == state
    assert not any(isinstance(finder, _script.OldModuleFinder) for finder in sys.meta_path)
