"""The public names are there, and those of the original are told where they are now."""

import importlib
import pkgutil

import pytest

import tensorflow_ipu as ipu

MODULES = [f"tensorflow_ipu.{one.name}" for one in pkgutil.iter_modules(ipu.__path__) if one.name[0] != "_"]


def test_public_modules_have_the_names_that_they_list():
    for module in map(importlib.import_module, ["tensorflow_ipu", *MODULES]):
        if module.__name__ != "tensorflow_ipu.cli":  # Its modules are the commands.
            missing = [name for name in module.__all__ if getattr(module, name, None) is None]
            assert missing == [], module


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "custom_ops",
            "in `tensorflow_ipu.ops.custom_ops`, and `from tensorflow.python.ipu import custom_ops` works after",
        ),
        ("ipu_infeed_queue", "in `tensorflow_ipu.feeds`, and"),
        ("ipu_estimator", "has no attribute `ipu_estimator`$"),
        ("nothing", "has no attribute `nothing`$"),
    ],
)
def test_a_module_of_the_original_that_is_looked_for_is_told(name, words, refused):
    refused(AttributeError, words, getattr, ipu, name)
