"""Only scripts that use names of TensorFlow 1 get `tf.compat.v1` as `tensorflow`; others miss these names."""

import os
import textwrap

import pytest
import tensorflow as tf

from tensorflow_ipu import __main__
from tensorflow_ipu.compat import _api_files, _project, _tensorflow_1, _tensorflow_version

BEGIN = "import tensorflow as tf\nimport tensorflow.compat.v1 as v1\n"


@pytest.fixture
def read(tmp_path):
    """`read(script, **modules)` returns what a script and the modules in its folder need of TensorFlow 1.

    The result has the names of the files that get `tf.compat.v1`, True if they run in graphs, and the lines with
    missing names.
    """

    def needs(script, **modules):
        for name, code in {"script": script, **modules}.items():
            (tmp_path / f"{name}.py").write_text(BEGIN + code)
        project = _project.of_script(tmp_path / "script.py")
        old = _tensorflow_version.old_tensorflow(project)
        gone = [finding.line for finding in _tensorflow_version.lost(project, old)]
        return sorted(file.stem for file in old.files), old.in_graphs, gone

    return needs


@pytest.mark.parametrize(
    "code",
    [
        "with tf.Session() as session: pass",
        "tf.reset_default_graph()",
        "from tensorflow import placeholder",
        "tf.layers.dense(1)",
        "tf.nn.rnn_cell.LSTMCell(2)",
        "tf.app.flags.DEFINE_string",
        "tf.summary.FileWriter('x')",
        "def f(): return tf.get_variable('x')",
    ],
)
def test_what_tensorflow_1_alone_has_is_found(read, code):
    assert read(code) == (["script"], True, [])


@pytest.mark.parametrize(
    "code",
    [
        "tf.reduce_sum(x, keepdims=True); tf.random.set_seed(1)",
        "tf.losses.MeanSquaredError(); tf.initializers.RandomUniform(0, 1, seed=2); tf.keras.layers.Dense(1)",
        "tf.summary.scalar('x', 1.0, step=2); tf.data.experimental.StatsAggregator(); tf.__version__",
        "tf.compat.v1.Session(graph=tf.Graph())",
        "v1.disable_eager_execution(); v1.Session()",
        "v1.Session(); tf.constant(1).numpy()",
        "if tf.__version__ < '2': tf.set_random_seed(1)\nelse: tf.random.set_seed(1)",
        "tf.set_random_seed(1) if tf.__version__[0] == '1' else None",
        "if hasattr(tf, 'Session'): tf.Session()",
        "try: tf.Session()\nexcept AttributeError: pass",
        "def f(tf): tf.Session()",
    ],
)
def test_script_of_tensorflow_2_is_left_alone(read, code):
    assert read(code) == ([], False, [])


_CONFIG = "config = v1.ConfigProto()\nconfig.gpu_options.allow_growth = True\n"


@pytest.mark.parametrize(
    "code",
    [
        "session = v1.InteractiveSession(config=config)\nmodel.compile('sgd')\nmodel.fit(x, y)",
        "v1.InteractiveSession(config=config)",
        "with v1.Session(config=config): pass",
        "with v1.Session() as s: s.run(x)\nmodel.fit(x, y, epochs=1)",
        "with v1.Session() as s: s.run(x)\nfrom tensorflow.python import ipu; ipu.ipu_strategy.IPUStrategy()",
        "import subprocess; v1.Session(); subprocess.run('ls')",
    ],
)
def test_session_that_runs_nothing_or_stands_beside_eager_code_takes_no_eager_execution(read, code):
    assert read(_CONFIG + code) == ([], False, [])


@pytest.mark.parametrize(
    "code",
    [
        "with v1.Session() as s:\n s.run(x)",
        "v1.Session(config=config).run(x)",
        "def f(session): session.run(x)\nf(v1.Session())",
        "def main(_): v1.placeholder(tf.float32)\nv1.app.run()",
        "class A:\n def __init__(self): self.s = v1.Session()\n def go(self): self.s.run(x)\nA().go()",
        "import re; re.compile('x'); scaler.fit(x)\nwith v1.train.MonitoredTrainingSession() as m: m.run(x)",
        "v1.InteractiveSession(); (x + 1).eval()",
    ],
)
def test_graph_that_is_built_and_run_by_names_of_both_takes_graphs(read, code):
    assert read(_CONFIG + code) == ([], True, [])


def test_script_with_the_usual_lines_for_gpus_executes_eagerly(run_script, tmp_path):
    script = tmp_path / "usual.py"
    session = "session = tf.compat.v1.InteractiveSession(config=config)"
    script.write_text(BEGIN + _CONFIG + f"{session}\nprint(tf.executing_eagerly())\n")
    done = run_script(_RUN, str(script))
    assert done.stdout.splitlines()[0] == "True"
    assert "TensorFlow 1" not in done.stderr


def test_files_of_a_script_get_tensorflow_1_together_or_those_that_need_it(read):
    assert read("import more; tf.Session()", more="tf.constant(1)") == (["more", "script"], True, [])
    assert read("import more; tf.function(print)", more="tf.get_variable") == (["more", "script"], False, [])
    of_2 = "tf.random.set_seed(1)"
    assert read(f"import more; {of_2}", more="tf.get_variable") == (["more"], False, [])
    assert read(f"{of_2}\ntf.get_variable\ntf.no_such\ntf.contrib.slim\nv1.no_such\n") == ([], False, [4, 5, 6, 7])
    assert read("v1.Session(); v1.placeholder") == ([], True, [])


def test_all_public_names_of_tensorflow_are_known():
    assert _names_below(tf, _api_files.TENSORFLOW_2) == []
    assert _names_below(tf.compat.v1, _api_files.TENSORFLOW_1) == ["app.flags"]


def _names_below(module, api, above=""):
    missing = []
    for name in dir(module):
        path = f"{above}.{name}".removeprefix(".")
        if not name.startswith("_"):
            missing += [path] * (not api.has(path))
            below = getattr(module, name, None)
            if "tensorflow._api" in getattr(below, "__name__", "") and name != "compat":
                missing += _names_below(below, api, path)
    return missing


@pytest.mark.parametrize(
    ("code", "value", "expected"),
    [
        ("import tensorflow as x", "x", "v1"),
        ("import os, tensorflow", "tensorflow", "v1"),
        ("import tensorflow.nn", "tensorflow", "v1"),
        ("import tensorflow.python.ops.nn", "tensorflow", "v1"),
        ("import tensorflow.keras as x", "x.Model", "v1.keras.Model"),
        ("from tensorflow import Session as x", "x", "v1.Session"),
        ("from tensorflow.train import Saver as x", "x", "v1.train.Saver"),
        ("from tensorflow.python.ops import nn as x", "x.__name__", "'tensorflow.python.ops.nn'"),
        ("import tensorflow.compat.v2 as x", "x.Variable", "tf.Variable"),
        ("import tensorflow.compat.v1 as x", "x", "v1"),
        ("def f():\n    import tensorflow\n    return tensorflow", "f()", "v1"),
        ("import os.path", "os.path", "os.path"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_imports_of_tensorflow_are_those_of_tensorflow_1(code, value, expected):
    names = {"__builtins__": _tensorflow_1.BUILTINS}
    exec(code, names)
    assert eval(value, names) == eval(expected, {"os": os, "tf": tf, "v1": tf.compat.v1})


_BENCHMARK = """\
import json

import tensorflow as tf
from tensorflow.python import ipu

import helper
import tensorflow.python.ipu.config

dataset = tf.data.Dataset.from_tensors(tf.ones([4])).repeat()
benchmark_op = ipu.dataset_benchmark.dataset_benchmark(dataset, 2, 512)

with tf.Session() as sess:
    json_string = sess.run(benchmark_op)
    json_object = json.loads(json_string[0])
    sess.run(tf.global_variables_initializer())
    print(len(json_object["epochs"]), sess.run(helper.weights).dtype, helper.weights.shape[0].value)
print(tf.__name__, tensorflow is tf, tensorflow.python.ipu is ipu, helper.others.__name__)
helper.fail()
"""

_HELPER = """\
import importlib

import tensorflow
from tensorflow import get_variable, initializers

weights = get_variable("weights", initializer=initializers.random_uniform(0, 1, dtype=tensorflow.float16)([3]))
others = importlib.import_module("tensorflow")


def fail():
    tensorflow.no_such()
"""

_RUN = """\
import os
import sys
sys.path.insert(0, os.path.dirname(sys.argv[-1]))
from tensorflow_ipu import __main__
print("status", __main__.main(sys.argv[1:]))
print([finder for finder in sys.meta_path if type(finder).__module__.endswith("_tensorflow_1")])
"""


def test_benchmark_of_the_guide_runs_in_graphs_with_the_names_of_tensorflow_1(run_script, tmp_path):
    (tmp_path / "bench.py").write_text(_BENCHMARK)
    (tmp_path / "helper.py").write_text(_HELPER)
    done = run_script(_RUN, str(tmp_path / "bench.py"))
    *_, numbers, names, status, left = done.stdout.splitlines()
    assert (numbers, status, left) == ("2 float16 3", "status 1", "[]")
    assert names == "tensorflow.compat.v1 True True tensorflow"
    assert "bench.py` is for TensorFlow 1 (" in done.stderr
    assert "and 2 more, which `check` lists) and runs with `tf.compat.v1` as `tensorflow` and graphs" in done.stderr
    assert "tensorflow.no_such()" in done.stderr  # The line of the file.


def test_check_tells_what_is_of_tensorflow_1_and_what_is_gone(tmp_path, capsys):
    script = tmp_path / "script.py"
    code = """\
        import tensorflow as tf
        tf.Session()
        tf.contrib.layers.xavier_initializer()
        def f():
            return tf.no_such()
    """
    script.write_text(textwrap.dedent(code))
    assert __main__.main(["check", str(script)]) == 1
    gone, contrib, no_such, title, session = capsys.readouterr().out.splitlines()
    assert (gone, title) == ("does not exist:", "exists only in TensorFlow 1, with which its scripts run:")
    assert contrib.startswith(f"  {script}:3: `tensorflow.contrib.layers` does not exist: use `tf.compat.v1.layers`")
    assert no_such == f"  {script}:5: TensorFlow has no `tensorflow.no_such` any more"
    assert session == f"  {script}:2: only TensorFlow 1 has `tensorflow.Session`"
