"""`python -m tensorflow_ipu` runs a script as Python does, or lists the names that do not exist."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tensorflow_ipu.ops import custom_ops

SCRIPTS = Path(__file__).parents[1] / "compat" / "scripts"

_SHOW_MAIN = """\
import sys
print(__name__, __file__ == sys.argv[0], sys.argv[1:])
print(sys.path[0])
print(sys.modules["__main__"].__dict__ is globals(), __spec__, __package__)
def fail():
    raise ValueError("of the script")
fail()
"""
_SAVES = "import keras\nkeras.Sequential([keras.layers.Dense(2)]).save('folder')\n"
_CALLS = "import keras\nclass A(keras.layers.Layer):\n def call(self, x): return {}\nA()(keras.Input(2))\n"


@pytest.fixture
def script(tmp_path):
    """`script(code)` writes a script and returns its path."""

    def write(code):
        path = tmp_path / "script.py"
        path.write_text(code)
        return path

    return write


def test_script_finds_itself_as_under_python_and_its_traceback_is_its_own(run_script, quick_imports, tmp_path):
    path = tmp_path / "main.py"
    path.write_text(_SHOW_MAIN)
    arguments = [path, "--force", "-h", "--", "x"]
    command = "import sys\nfrom tensorflow_ipu import __main__\nsys.exit(__main__.main(sys.argv[1:]))"
    done = run_script(command, *map(str, arguments), check=False)
    environment = {**os.environ, **quick_imports}
    python = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == python.returncode == 1
    assert done.stdout.splitlines() == [*python.stdout.splitlines()[:2], "True None None"]
    lines = done.stderr[done.stderr.index("Traceback") :].splitlines()
    places = [line.strip() for line in lines if line.startswith("  File")]
    assert places == [f'File "{path}", line {place}' for place in ("7, in <module>", "6, in fail")]
    assert lines[-1] == "ValueError: of the script"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('no more')", "no more"),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", 128 + signal.SIGINT),
        ("print('x'" + ".strip()" * 500 + ")\n", 0),
    ],
)
def test_command_ends_as_the_script_does(execute, script, code, status):
    assert execute(script(code))[0] == status


def test_missing_names_are_listed_all_at_once_and_nothing_runs(execute):
    status, out, err = execute(SCRIPTS / "needs_more.py")
    assert (status, out) == (2, "")
    places = [line.strip().partition(": ")[0] for line in err.splitlines() if line.startswith("  /")]
    assert places == [f"{SCRIPTS}/needs_more.py:{line}" for line in (7, 8, 17, 18, 19)] + [f"{SCRIPTS}/sibling.py:3"]
    assert "`tensorflow.python.ipu.loops` has no name `for_loop`" in err
    assert "`tf.estimator`" in err
    assert "popart" not in err
    assert "--force" in err


@pytest.mark.parametrize(
    ("code", "has_advice"),
    [
        (_SAVES, True),
        ("import keras\nkeras.Input(2) @ 'x'\n", True),
        ("import keras\ngetattr(keras.Sequential(), 'fit_' + 'generator')\n", True),
        ("import importlib\nimportlib.import_module('keras.' + 'no_such')\n", True),
        (_CALLS.format("x.no_such"), False),
        (_CALLS.format("1 / 0"), False),
        ("import tensorflow as tf\ntf.ones([2]) @ tf.ones([3])\n", False),
        ("raise ValueError('of the script')\n", False),
        ("raise SystemExit(1)\n", False),
    ],
)
def test_error_of_keras_3_in_code_of_the_sdk_ends_with_what_may_help(execute, script, code, has_advice):
    status, _, err = execute(script(f"from tensorflow.python import ipu\n{code}"))
    *_, last = ["", *err.splitlines()]
    assert (status, "`--keras 2` may be what this script needs" in last) == (1, has_advice), last


def test_error_of_keras_3_in_other_code_is_left_alone(execute, script):
    status, _, err = execute(script(_SAVES))
    assert (status, "--keras 2" in err) == (1, False)


def test_force_runs_up_to_the_first_missing_name(execute, script):
    code = "from tensorflow.python.ipu import loops\nprint('here')\nloops.for_loop\n"
    status, out, err = execute("--force", script(code))
    assert (status, out) == (1, "here\n")
    assert err.count("`tensorflow.python.ipu.loops` has no name `for_loop`") == 2
    assert err.splitlines()[-1].startswith("AttributeError: ")


def test_script_runs_without_tensorflow_1_if_it_is_told_to(execute, script):
    status, _, err = execute("--tensorflow", "2", script("import tensorflow as tf\ntf.Session\n"))
    assert status == 1
    assert "is for TensorFlow 1" not in err
    assert "has no attribute 'Session'" in err


def test_file_of_emulations_is_named_by_an_option_or_a_variable(execute, script, tmp_path, monkeypatch):
    custom_ops._run_file_of_emulations.cache_clear()
    emulations = tmp_path / "emulations.py"
    path = script(
        "import tensorflow as tf\n"
        "from tensorflow.python import ipu\n"
        "outs = {'output_types': [tf.float32], 'output_shapes': [[]]}\n"
        "print(float(ipu.custom_ops.precompiled_user_op([3.0], 'libthird.so', outs=outs, op_name='Third')[0]))\n"
    )
    status, _, err = execute(path)
    assert status == 1
    for text in ("`Third` of `libthird.so`", "`TENSORFLOW_IPU_EMULATIONS=FILE`", "porting.md#operations-for-tiles"):
        assert text in err
    custom_ops._run_file_of_emulations.cache_clear()
    registered = "import tensorflow_ipu.ops as ops\nops.register_user_op_emulation('Third', lambda x: x / {})\n"
    status, _, err = execute("--emulations=gone.py", path)
    assert (status, "`--emulations=gone.py` names no Python file" in err) == (2, True)
    monkeypatch.setenv("TENSORFLOW_IPU_EMULATIONS", "gone.py")
    status, _, err = execute(path)
    assert (status, "`TENSORFLOW_IPU_EMULATIONS=gone.py` names no Python file" in err) == (1, True)
    emulations.write_text(registered.format(3))
    monkeypatch.setenv("TENSORFLOW_IPU_EMULATIONS", str(emulations))
    assert execute(path)[:2] == (0, "1.0\n")
    emulations.write_text(registered.format(2))
    assert execute(f"--emulations={emulations}", path)[:2] == (0, "1.5\n")
    custom_ops._run_file_of_emulations.cache_clear()


def test_syntax_error_is_told_as_python_tells_it_and_a_script_may_be_named_like_a_command(execute, script, tmp_path):
    path = script("x = (")
    status, _, err = execute(path)
    assert status == 1
    assert err.startswith(f'  File "{path}", line 1')
    assert "_script.py" not in err
    (tmp_path / "run").write_text("print('ran')")
    assert execute("run", tmp_path / "run")[:2] == (0, "ran\n")


@pytest.mark.parametrize("arguments", [["check"], []])
def test_pipe_or_device_is_refused_and_not_waited_for(execute, tmp_path, arguments):
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    for path in (pipe, Path(os.devnull)):
        status, _, err = execute(*arguments, path)
        assert status == 2
        assert f"`{path}` is no regular file" in err


def test_check_reads_and_runs_nothing(execute, script):
    status, out, _ = execute("--check", SCRIPTS)
    assert status == 1
    titles = (
        "exists only in Keras 2:\n",
        "is recorded, but changes no result:\n",
        "makes scripts run with Keras 2:\n",
    )
    missing, _, recorded, _ = re.split("|".join(titles), out)
    for text, files in ((missing, {"needs_more.py", "sibling.py"}), (recorded, {"session.py"})):
        places = [line.strip().partition(":")[0] for line in text.splitlines() if line.startswith("  ")]
        assert {Path(place).name for place in places} == files
    assert missing.startswith("does not exist:\n")
    path = script("from tensorflow.python import ipu\nipu.scopes.ipu_jit_scope(1)\nraise SystemError\n")
    status, out, _ = execute("--check", path)
    title, place, end = out.splitlines()
    assert (status, title, end) == (0, "is recorded, but changes no result:", "Nothing is missing.")
    assert place.startswith(f"  {path}:2: ")


def test_list_prints_the_names_that_are_asked_for(execute):
    status, out, _ = execute("--list", "ipu.loops", "RunConfig")
    *rows, counts = out.splitlines()
    assert [" ".join(row.split()[:3]) for row in rows] == [
        "ipu.ipu_run_config.IPURunConfig cannot be",
        "ipu.ipu_run_config.RunConfig cannot be",
        "ipu.loops.repeat works tensorflow_ipu.loops.repeat",
        "ipu.loops.while_loop works tensorflow_ipu.loops.while_loop",
    ]
    assert "cannot be  it needs `tf.estimator`" in rows[0]
    assert (status, counts) == (0, "4 names: 2 works, 0 recorded, 2 cannot be")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--check", "no_such.py"], 2, "`no_such.py`"),
        (["--help"], 0, "SCRIPT"),
        (["no_such_script.py"], 2, "`no_such_script.py` does not exist"),
        (["."], 2, "`.` is a folder"),
        ([], 2, "name the script to run"),
        (["--faster", "x.py"], 2, "--faster"),
    ],
)
def test_command_line_is_explained(execute, arguments, status, text):
    actual_status, out, err = execute(*arguments)
    assert actual_status == status
    assert text in (err if status else out)
