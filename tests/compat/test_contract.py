"""The compatibility layer takes the arguments of the SDK's API: the same names, order and defaults, the same members."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._table import Absent
from tensorflow_ipu.keras.optimizers import ALSDefaults

pytestmark = pytest.mark.usefixtures("installed")

# What instances have and their class has not.
OF_INSTANCES = {f"{kind}LayerPipelineStageAssignment.pipeline_stage" for kind in ("Model", "Sequential")}
# Takes `*args` there, and what the wrapped optimizer's takes here.
OTHERWISE = {"MapGradientOptimizer.compute_gradients"}


def _contract():
    """Module, name, and arguments (`(x, name=None)`) or another word of each line whose name exists here."""
    lines = Path(__file__).with_name("contract.txt").read_text().splitlines()[1:]
    rows = [(module, name, rest) for module, name, rest in (line.split(" ", 2) for line in lines)]
    return [row for row in rows if not isinstance(_names.target(row[0], row[1].partition(".")[0]), Absent)]


def _expected(source):
    """The value of a default, or the name of a constant that it is."""
    text = ast.unparse(source)
    if text.startswith("ALSDefaults."):
        return getattr(ALSDefaults, text.partition(".")[2])
    try:
        return ast.literal_eval(source)
    except ValueError:
        return text.rpartition(".")[2]


def _is(default, expected):
    if isinstance(expected, str) and not isinstance(default, str):  # A constant of TensorFlow's or an enumeration's.
        return (default.name if isinstance(default, enum.Enum) or hasattr(default, "name") else str(default)) in (
            expected,
            {"half": "float16"}.get(expected),
        )
    return (tuple(expected) if isinstance(expected, list) else expected) == default or default == expected


def _faults(module, name, rest):
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            return [] if name in OF_INSTANCES else [f"{name}: there is no `{part}`"]
        found = getattr(found, part)
    if not rest.startswith("(") or name in OTHERWISE:
        return []
    function: Any = ast.parse(f"def f{rest}: pass").body[0]
    theirs = [each.arg for each in function.args.args if each.arg != "self"]
    ours = [each for each in inspect.signature(found).parameters.values() if each.name != "self"]
    positional = [each.name for each in ours if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if positional[: len(theirs)] != theirs:
        return [f"{name}: takes {positional}, and not {theirs}"]
    needed = [each.name for each in ours if each.name in positional[len(theirs) :] and each.default is each.empty]
    faults = [f"{name}: also needs {needed}"] if needed else []
    defaults = zip(reversed(theirs), reversed(function.args.defaults), strict=False)
    known = {each.name: each.default for each in ours}
    return faults + [
        f"{name}: `{argument}` is {known[argument]!r}, and not {ast.unparse(default)}"
        for argument, default in defaults
        if repr(known[argument]) != ast.unparse(default) and not _is(known[argument], _expected(default))
    ]


def test_arguments_and_members_are_those_of_the_contract():
    rows = _contract()
    assert len(rows) > 350
    assert [fault for row in rows for fault in _faults(*row)] == []


def test_every_name_of_the_contract_has_its_row():
    lines = Path(__file__).with_name("contract.txt").read_text().splitlines()[1:]
    names = {(line.split(" ", 2)[0], line.split(" ", 2)[1].partition(".")[0]) for line in lines}
    assert [(module, name) for module, name in sorted(names) if _names.target(module, name) is None] == []


def test_differences_from_the_contract_are_found():
    module = "tensorflow.python.ipu.loops"
    rest = "(n, body, inputs=None, infeed_queue=None, use_while_v1=True)"
    assert _faults(module, "repeat", rest) == []
    assert _faults(module, "repeat", rest.replace("True", "False")) == ["repeat: `use_while_v1` is True, and not False"]
    (fault,) = _faults(module, "repeat", "(body, n)")
    assert fault.endswith("and not ['body', 'n']")
    assert _faults(module, "repeat", "(n)") == ["repeat: also needs ['body']"]
    assert _faults(module, "repeat.no_such", "()") == ["repeat.no_such: there is no `no_such`"]
