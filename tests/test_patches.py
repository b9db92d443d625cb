"""Replaced functions of TensorFlow and Keras: when they are replaced, by which function, and that they are restored."""

import copy
import gc
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import environment
from tensorflow_ipu._tensorflow import patches
from tensorflow_ipu._tensorflow.patches import Changes, Hook, Lifetime, Patch


def test_rows_say_why_and_until_when_stand_on_the_page_and_three_last_from_the_import_on():
    assert all(patch.why and patch.until and patch.places for patch in patches.TABLE)
    assert len(patches.TABLE) == len({(*patch.places, patch.why) for patch in patches.TABLE})
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    assert [name for name, value in vars(patches).items() if isinstance(value, Patch) and name not in page] == []
    lasting = {patch for patch in patches.TABLE if patch.lasts is Lifetime.IMPORT}
    assert lasting == {patches.AUTOGRAPH_RULES, patches.JIT_COMPILE_AUTO, patches.GLOBAL_SEED}
    assert all(patch.is_applied for patch in lasting - {patches.JIT_COMPILE_AUTO, patches.GLOBAL_SEED})


def test_what_lasts_as_long_as_a_trace_is_put_back_after_it():
    of_other_keras = {patches.KERAS_SELECTIONS}
    if environment.uses_keras_2():
        of_other_keras = {patches.KERAS_MOMENTS, patches.KERAS_SEEDS, patches.KERAS_RECURRENT}
    rows = {patch for patch in patches.TABLE if patch.lasts is Lifetime.TRACE} - of_other_keras
    applied = []

    @tf.function(jit_compile=True)
    def program():
        applied.append([patch.is_applied for patch in rows])
        return tf.constant(1.0)

    ipu.IPUStrategy().run(program)
    assert applied
    assert all(map(all, applied))
    assert not any(patch.is_applied for patch in rows)


class Holder:
    """A class of another package."""

    kept = []  # noqa: RUF012

    def method(self):
        return "plain"


@pytest.fixture
def method(monkeypatch):
    module: Any = types.ModuleType("patched_module")
    module.Holder = Holder
    monkeypatch.setitem(sys.modules, "patched_module", module)
    return Patch("patched_module:Holder.method", why="a test", lasts=Lifetime.SCOPE, until="its end")


def replacement(original):
    return lambda self: f"ours of {original(self)}"


def test_blocks_may_overlap_and_fail(method):
    def work():
        with method.applied(replacement):
            with method.applied(replacement):
                assert Holder().method() == "ours of plain"
            assert Holder().method() == "ours of plain"
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert Holder().method() == "plain"


def test_it_is_put_back_when_the_last_object_goes(method):
    first, second = tf.Module(), tf.Module()
    method.apply_while(first, replacement)
    method.apply_while(second, replacement)
    method.apply_while(second, replacement)
    del first
    gc.collect()
    assert method.is_applied
    assert Holder().method() == "ours of plain"
    del second
    gc.collect()
    assert not method.is_applied
    assert Holder().method() == "plain"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_of_an_object_hold_what_is_replaced_by_themselves(method, copied):
    module = tf.Module()
    method.apply_while(module, replacement)
    copy_of_module = copied(module)
    method.apply_while(copy_of_module, replacement)
    del module
    gc.collect()
    assert method.is_applied
    del copy_of_module
    gc.collect()
    assert not method.is_applied


def test_what_somebody_else_put_there_meanwhile_stays(method, monkeypatch):
    monkeypatch.setattr(Holder, "method", Holder.method)  # `monkeypatch` restores the method after the test.
    with method.applied(replacement):
        monkeypatch.setattr(Holder, "method", lambda _: "theirs")
    assert Holder().method() == "theirs"


def test_a_hook_is_called_for_as_long_as_it_is_wanted(method):
    del method  # The fixture has created the module.
    hook = Hook("patched_module:Holder.kept", why="a test", lasts=Lifetime.OBJECT, until="its end")
    calls = []
    for value in (1, 2):
        with hook.applied(calls.append):
            [function] = Holder.kept
            function(value)
        function(-value)
    assert calls == [1, 2]
    Holder.kept.clear()


def test_changes_are_taken_back_with_the_rows_that_were_applied(method):
    changes = Changes()
    changes.apply(method, replacement)
    changes.put(Holder, "more", 1)
    assert Holder().method() == "ours of plain"
    assert Holder.more == 1  # pyright: ignore[reportAttributeAccessIssue]
    changes.undo()
    assert Holder().method() == "plain"
    assert not hasattr(Holder, "more")
