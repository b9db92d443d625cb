"""`python -m tensorflow_ipu` runs a script as Python itself would, or says what it lacks."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tensorflow_ipu import __main__, compat
from tensorflow_ipu.ops import custom_ops

SCRIPTS = Path(__file__).parent / "scripts"


_TELL = """\
import sys
print(__name__, __file__ == sys.argv[0], sys.argv[1:])
print(sys.path[0])
print(sys.modules["__main__"].__dict__ is globals(), __spec__, __package__)
"""

_FAIL = """\
def fail():
    raise ValueError("of the script")
fail()
"""
_FAIL_LINES = [len(_TELL.splitlines()) + line for line in (3, 2)]


@pytest.fixture
def here(monkeypatch):
    """Executes a command line in this process, and gives what it exits with: `here(*words)`."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def run(*words):
        try:
            return __main__.main([str(word) for word in words])
        except SystemExit as exc:
            return exc.code

    yield run
    compat.uninstall()


def _script(folder, code):
    path = folder / "script.py"
    path.write_text(code)
    return path


def test_script_finds_itself_as_under_python_and_its_traceback_is_its_own(run_script, quick_imports, tmp_path):
    script = tmp_path / "told.py"
    script.write_text(_TELL + _FAIL)
    command = "import sys\nfrom tensorflow_ipu import __main__\nsys.exit(__main__.main(sys.argv[1:]))"
    done = run_script(command, str(script), "--force", "-h", "--", "x", check=False)
    plain = subprocess.run(
        [sys.executable, script, "--force", "-h", "--", "x"],
        env={**os.environ, **quick_imports},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == plain.returncode == 1
    assert done.stdout.splitlines()[:2] == plain.stdout.splitlines()[:2]
    assert done.stdout.splitlines()[2] == "True None None"
    lines = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert [line.strip() for line in lines if line.startswith("  File")] == [
        f'File "{script}", line {_FAIL_LINES[0]}, in <module>',
        f'File "{script}", line {_FAIL_LINES[1]}, in fail',
    ]
    assert lines[-1] == "ValueError: of the script"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('no more')", "no more"),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", 128 + signal.SIGINT),
    ],
)
def test_command_ends_as_the_script_does(here, tmp_path, code, status):
    assert here(_script(tmp_path, code)) == status


def test_missing_names_are_listed_all_at_once_and_nothing_runs(here, capsys):
    assert here(SCRIPTS / "needs_more.py") == 2
    said = capsys.readouterr()
    assert said.out == ""
    places = [line.strip().partition(": ")[0] for line in said.err.splitlines() if line.startswith("  /")]
    assert places == [f"{SCRIPTS}/needs_more.py:{line}" for line in (7, 8, 17, 18, 19)] + [f"{SCRIPTS}/sibling.py:3"]
    assert "`tensorflow.python.ipu.loops` has no name `for_loop`" in said.err
    assert "`tf.estimator`" in said.err
    assert "popart" not in said.err
    assert "--force" in said.err


_SAVES = "import keras\nkeras.Sequential([keras.layers.Dense(2)]).save('folder')\n"


@pytest.mark.parametrize(
    ("code", "is_told"),
    [
        (_SAVES, True),
        ("import keras\nkeras.Input(2) @ 'x'\n", True),
        ("import keras\ngetattr(keras.Sequential(), 'fit_' + 'generator')\n", True),
        ("import importlib\nimportlib.import_module('keras.' + 'no_such')\n", True),
        (
            "import keras\nclass A(keras.layers.Layer):\n    def call(self, x): return x.no_such\nA()(keras.Input(2))\n",
            False,
        ),
        (
            "import keras\nclass A(keras.layers.Layer):\n    def call(self, x): return 1 / 0\nA()(keras.Input(2))\n",
            False,
        ),
        ("import tensorflow as tf\ntf.ones([2]) @ tf.ones([3])\n", False),
        ("raise ValueError('of the script')\n", False),
        ("raise SystemExit(1)\n", False),
    ],
)
def test_error_of_keras_3_in_code_of_the_sdk_ends_with_what_may_help(here, tmp_path, capsys, code, is_told):
    assert here(_script(tmp_path, f"from tensorflow.python import ipu\n{code}")) == 1
    *_, last = ["", *capsys.readouterr().err.splitlines()]
    assert ("`--keras 2` may be what this script needs" in last) is is_told, last


def test_error_of_keras_3_in_other_code_is_left_alone(here, tmp_path, capsys):
    assert here(_script(tmp_path, _SAVES)) == 1
    assert "--keras 2" not in capsys.readouterr().err


def test_force_runs_up_to_the_first_missing_name(here, tmp_path, capsys):
    script = _script(tmp_path, "from tensorflow.python.ipu import loops\nprint('here')\nloops.for_loop\n")
    assert here("--force", script) == 1
    said = capsys.readouterr()
    assert said.out == "here\n"
    assert said.err.count("`tensorflow.python.ipu.loops` has no name `for_loop`") == 2
    assert said.err.splitlines()[-1].startswith("AttributeError: ")


def test_script_runs_without_tensorflow_1_if_it_is_told_to(here, tmp_path, capsys):
    assert here("--tensorflow", "2", _script(tmp_path, "import tensorflow as tf\ntf.Session\n")) == 1
    said = capsys.readouterr().err
    assert "is for TensorFlow 1" not in said
    assert "has no attribute 'Session'" in said


def test_file_of_emulations_runs_before_the_script(here, tmp_path, capsys):
    emulations = tmp_path / "emulations.py"
    emulations.write_text(
        "import tensorflow_ipu.ops as ops\n"
        "ops.register_user_op_emulation('Half', lambda x: x / 2, library='libhalf.so')\n"
    )
    script = _script(
        tmp_path,
        "import tensorflow as tf\n"
        "from tensorflow.python import ipu\n"
        "outs = {'output_types': [tf.float32], 'output_shapes': [[]]}\n"
        "print(float(ipu.custom_ops.precompiled_user_op([3.0], 'libhalf.so', outs=outs, op_name='Half')[0]))\n",
    )
    assert here(f"--emulations={emulations}", script) == 0
    assert capsys.readouterr().out == "1.5\n"
    assert here("--emulations=gone.py", script) == 2
    assert "`--emulations=gone.py` names no Python file" in capsys.readouterr().err


def test_variable_names_the_file_of_emulations(here, tmp_path, capsys, monkeypatch):
    custom_ops._run_file_of_emulations.cache_clear()
    emulations = tmp_path / "emulations.py"
    emulations.write_text(
        "import tensorflow_ipu.ops as ops\n"
        "ops.register_user_op_emulation('Third', lambda x: x / 3, library='libthird.so')\n"
    )
    script = _script(
        tmp_path,
        "import tensorflow as tf\n"
        "from tensorflow.python import ipu\n"
        "outs = {'output_types': [tf.float32], 'output_shapes': [[]]}\n"
        "print(float(ipu.custom_ops.precompiled_user_op([3.0], 'libthird.so', outs=outs, op_name='Third')[0]))\n",
    )
    assert here(script) == 1
    said = capsys.readouterr().err
    for words in (
        "`Third` of `libthird.so`",
        "`TENSORFLOW_IPU_EMULATIONS=FILE`",
        "docs/porting.md#operations-for-tiles",
    ):
        assert words in said
    custom_ops._run_file_of_emulations.cache_clear()
    monkeypatch.setenv("TENSORFLOW_IPU_EMULATIONS", "gone.py")
    assert here(script) == 1
    assert "`TENSORFLOW_IPU_EMULATIONS=gone.py` names no Python file" in capsys.readouterr().err
    monkeypatch.setenv("TENSORFLOW_IPU_EMULATIONS", str(emulations))
    assert here(script) == 0
    assert capsys.readouterr().out == "1.0\n"
    custom_ops._run_file_of_emulations.cache_clear()


def test_syntax_error_is_told_as_python_tells_it_and_a_script_may_be_named_like_a_command(here, tmp_path, capsys):
    script = _script(tmp_path, "x = (")
    assert here(script) == 1
    said = capsys.readouterr().err
    assert said.startswith(f'  File "{script}", line 1')
    assert "_script.py" not in said
    script = tmp_path / "run"
    script.write_text("print('ran')")
    assert here("run", script) == 0
    assert capsys.readouterr().out == "ran\n"


@pytest.mark.parametrize("words", [["check"], []])
def test_pipe_or_device_is_refused_and_not_waited_for(here, tmp_path, capsys, words):
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    for path in (pipe, Path(os.devnull)):
        assert here(*words, path) == 2
        assert f"`{path}` is no regular file" in capsys.readouterr().err


def test_check_reads_and_runs_nothing(here, tmp_path, capsys):
    assert here("--check", SCRIPTS) == 1
    titles = (
        "is of Keras 2 alone:\n",
        "is written down, and changes no result:\n",
        "has scripts run with Keras 2:\n",
    )
    missing, _, recorded, _ = re.split("|".join(titles), capsys.readouterr().out)
    for said, files in ((missing, {"needs_more.py", "sibling.py"}), (recorded, {"session.py"})):
        places = [line.strip().partition(":")[0] for line in said.splitlines() if line.startswith("  ")]
        assert {Path(place).name for place in places} == files
    assert missing.startswith("does not exist:\n")
    script = _script(tmp_path, "from tensorflow.python import ipu\nipu.scopes.ipu_jit_scope(1)\nraise SystemError\n")
    assert here("--check", script) == 0
    title, place, end = capsys.readouterr().out.splitlines()
    assert (title, end) == ("is written down, and changes no result:", "Nothing is missing.")
    assert place.startswith(f"  {script}:2: ")


def test_list_prints_the_names_that_are_asked_for(here, capsys):
    assert here("--list", "ipu.loops", "RunConfig") == 0
    *rows, counts = capsys.readouterr().out.splitlines()
    assert [row.split(maxsplit=1) for row in rows] == [
        ["ipu.ipu_run_config.IPURunConfig", rows[0].split(maxsplit=1)[1]],
        ["ipu.ipu_run_config.RunConfig", rows[1].split(maxsplit=1)[1]],
        ["ipu.loops.repeat", "works      tensorflow_ipu.loops.repeat"],
        ["ipu.loops.while_loop", "works      tensorflow_ipu.loops.while_loop"],
    ]
    assert "cannot be  it needs `tf.estimator`" in rows[0]
    assert counts == "4 names: 2 works, 0 recorded, 2 cannot be"


@pytest.mark.parametrize(
    ("words", "status", "back"),
    [
        (["--check", "no_such.py"], 2, "`no_such.py`"),
        (["--help"], 0, "SCRIPT"),
        (["no_such_script.py"], 2, "`no_such_script.py` does not exist"),
        (["."], 2, "`.` is a folder"),
        ([], 2, "name the script to run"),
        (["--faster", "x.py"], 2, "--faster"),
    ],
)
def test_command_line_is_explained(here, capsys, words, status, back):
    assert here(*words) == status
    said = capsys.readouterr()
    assert back in (said.err if status else said.out)
