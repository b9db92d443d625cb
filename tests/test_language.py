"""The checks of the language find what they are for, and let the rest pass."""

import importlib.util
import pathlib

import pytest

FILE = pathlib.Path(__file__).parents[1] / "build_tools" / "language.py"
FILES = {"strategy.py", "infeed.cc"}


@pytest.fixture(scope="module")
def language():
    spec = importlib.util.spec_from_file_location("language", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('"""What runs a program."""', "begins with `What`"),
        ('def count():\n    """How many replicas there are."""', "begins with `How`"),
        ('class A:\n    """Where elements wait."""', "begins with `Where`"),
        ("for _ in values:\n    print(_)", "`_` is read"),
        ("found = find()", "the name `found` says nothing"),
        ("def convert(given):\n    return 2", "the name `given` says nothing"),
        ("# See `queues/outfeed.cc`.", "there is no file `queues/outfeed.cc`"),
        ('def f():\n    """Reads `rows.py`."""', "there is no file `rows.py`"),
    ],
)
def test_finding_names_its_line_and_the_text(language, source, message):
    findings = list(language.of_python(source, FILES))
    assert len(findings) == 1
    line, text = findings[0]
    assert message in text
    assert 1 <= line <= source.count("\n") + 1


@pytest.mark.parametrize(
    "source",
    [
        '"""Runs programs."""\n\n\ndef call():\n    """Returns what `train.py` printed."""',
        "for _ in range(3):\n    step()",
        "# The file `strategy.py`, `tensorflow/core/ops/ops.h` and https://a.org/b.py exist.",
        "matching_layers = result = 2",
    ],
)
def test_plain_sources_pass(language, source):
    assert list(language.of_python(source, FILES)) == []


def test_comments_of_cpp_name_files_that_exist(language):
    findings = list(language.of_cpp('int a;  // See infeed.cc.\nint b;  // See gone.h.\nauto c = "gone.py";', FILES))
    assert findings == [(2, "there is no file `gone.h`")]


def test_tests_may_use_any_names(language):
    assert list(language.of_python("found = 1", FILES, "tests/test_a.py")) == []
