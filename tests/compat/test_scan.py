"""Reading a script finds exactly the names that do not exist."""

import textwrap
from pathlib import Path

import pytest

from tensorflow_ipu.compat import _keras_version, _missing, _project
from tensorflow_ipu.compat._keras_version import Weight


@pytest.fixture
def lines(tmp_path):
    """A function that returns the lines of a script at which a name is missing."""

    def scan(code):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        project = _project.of_script(script)
        lost = [need for need in _keras_version.needs(project) if need.weight is Weight.LOST]
        return sorted({finding.line for finding in [*_missing.missing(project), *lost]})

    return scan


@pytest.mark.parametrize(
    "code",
    [
        "from tensorflow.python import ipu\nipu.loops.no_such(1)",
        "import tensorflow.python.ipu as ipu\nx = ipu.loops.no_such.y.z()",
        "from tensorflow.python.ipu import loops as l\nl.no_such",
        "import tensorflow as tf\ntf.keras.ipu.no_such()",
        "import tensorflow.compat.v1 as tf\ntf.keras.ipu.no_such()",
        "import keras\nkeras.ipu.layers.no_such",
        "from tensorflow import keras\nkeras.ipu.no_such",
        "from tensorflow.keras import ipu, layers\nipu.layers.no_such",
        "import tensorflow.keras as k\nk.ipu.optimizers.no_such",
        "from tensorflow.compat import v1 as tf\ntf.keras.ipu.no_such",
        "import os\nfrom tensorflow.compat.v1.keras.ipu import no_such",
        "import tensorflow as tf; keras = tf.keras\nkeras.ipu.no_such",
        "from tensorflow import keras; engine = keras.engine\nengine.no_such.Layer",
        "import tensorflow as tf\nfrom tensorflow.python.ipu.loops import no_such as x",
        "import os\nimport tensorflow.python.ipu.no_such",
        "import os\nfrom tensorflow.python.ipu.keras.layers import no_such",
        "import os\nimport popart.ir",
        "import popdist.tensorflow\npopdist.tensorflow.no_such",
        "import os\nfrom tensorflow.python.ipu import (\n loops, no_such)".replace("\n loops", " loops"),
        "def f():\n    from tensorflow.python.ipu import no_such",
        "import os\nfrom tensorflow.compiler.plugin.poplar.driver.config_pb2 import IpuOptions",
        "import tensorflow as tf\ntf.python.ipu.loops.no_such()",
        "import tensorflow.python.ipu\ntensorflow.python.ipu.loops.no_such()",
        "from tensorflow import python as p\np.ipu.no_such",
        "from tensorflow.python.ipu import *\nloops.no_such",
        "from tensorflow.python.ipu.ipu_estimator import *\nIPUEstimator()",
        "from tensorflow.python import ipu\ngetattr(ipu.loops, 'no_such')()",
        "import importlib\nimportlib.import_module('tensorflow.python.ipu.no_such')",
        "import importlib; l = importlib.import_module('tensorflow.python.ipu.loops')\nl.no_such",
        "from tensorflow.python import ipu; l, s = ipu.loops, ipu.scopes\ns.no_such",
        "from tensorflow.python import ipu; l: object = ipu.loops\nl.no_such",
        "from tensorflow.python import ipu\nif (l := ipu.loops).no_such: pass",
        "from tensorflow.python.ipu import loops\ndef f(x=loops.no_such, *, loops): return loops.nothing",
        "from tensorflow.python.ipu import loops; f = lambda loops: loops.nothing\nloops.no_such",
        "from tensorflow.python.ipu import loops; [loops.nothing for loops in ()]\nloops.no_such",
        "def f(): global loops; from tensorflow.python.ipu import loops\nloops.no_such",
        "from tensorflow.python.ipu import scopes\nclass A: f = scopes.no_such",
        "try:\n    from tensorflow.python.ipu import no_such\nexcept ValueError:\n    pass",
        "try: from tensorflow.python import ipu; ipu.loops\nexcept ImportError: ipu = None; ipu.loops.no_such",
    ],
)
def test_missing_name_is_found_on_its_line(lines, code):
    assert lines(code) == [2]


@pytest.mark.parametrize(
    "code",
    [
        "from tensorflow.python import ipu\nipu.loops.repeat(1)\nipu.config.IPUConfig().no_such = 1",
        "from tensorflow.python.ipu.config import IPUConfig\nIPUConfig.no_such",
        "from tensorflow.python.ipu import config\nconfig = config.IPUConfig()\nconfig.auto_select_ipus = 1",
        "from tensorflow.python.ipu import loops\ndef f(loops):\n    return loops.no_such",
        "try:\n    from tensorflow.python.ipu import no_such\nexcept ImportError:\n    pass",
        "try:\n    import popart\nexcept (OSError, ModuleNotFoundError):\n    pass",
        "import tensorflow as tf\ntf.keras.layers.Dense(1)\ntf.no_such",
        "import os.path\nos.no_such",
        "import tensorflow as tf\nkeras = tf.keras\nkeras = print\nkeras.ipu.no_such",
        "import keras\nkeras = keras.ipu\nkeras.no_such",
        "from tensorflow.python.ipu.loops import *",
        "from . import no_such",
        "from tensorflow.python import ipu\nif hasattr(ipu.loops, 'no_such'):\n    ipu.loops.no_such",
        "from tensorflow.python import ipu\nx = ipu.loops.no_such if hasattr(ipu.loops, 'no_such') else 1",
        "from tensorflow.python import ipu\ngetattr(ipu.loops, 'no_such', None)",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    from tensorflow.python.ipu import no_such",
        "import typing\nif typing.TYPE_CHECKING:\n    from tensorflow.python.ipu import no_such",
        "from tensorflow.python.ipu.ipu_estimator import *\nIPUEstimator = 1\nIPUEstimator",
        "from tensorflow.python.ipu import loops\nfor loops in ():\n    loops.no_such",
        "from tensorflow.python.ipu import loops\nclass A:\n    loops = 1\n    loops.no_such",
        "if x:\n    from tensorflow.python.ipu import scopes as m\nelse:\n    import os as m\nm.no_such",
        "a = b\nb = a\nb.no_such",
        "this is no Python",
    ],
)
def test_script_without_missing_names_has_no_findings(lines, code):
    assert lines(code) == []


def test_modules_beside_the_script_are_read_too(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import script")  # A cycle.
    (tmp_path / "package" / "part.py").write_text("\nfrom tensorflow.python.ipu.loops import no_such")
    script = tmp_path / "script.py"
    script.write_text("from package import part")
    (finding,) = _missing.missing(_project.of_script(script))
    assert (finding.path, finding.line) == (str(tmp_path / "package" / "part.py"), 2)
    assert "`no_such`" in finding.message


def test_name_of_a_function_hides_that_of_the_file_there_alone(lines):
    code = """\
    from tensorflow.python.ipu import loops
    def theirs(loops):
        return loops.no_such
    class Ours:
        loops = 1
        def ours(self):
            return loops.no_such
    """
    assert lines(code) == [7]


@pytest.mark.parametrize(
    ("helper", "code"),
    [
        ("from tensorflow.python import ipu", "import helper\nhelper.ipu.loops.no_such"),
        ("from tensorflow.python import ipu", "from helper import ipu as i\ni.loops.no_such"),
        ("from tensorflow.python import ipu\nl = ipu.loops", "from helper import *\nl.no_such"),
        ("from tensorflow.python.ipu import *", "from helper import *\nloops.no_such"),
        ("from tensorflow.python.ipu.ipu_estimator import *", "from helper import *\nIPUEstimator"),
        ("from script import l", "from helper import l; import tensorflow.keras as k\nk.ipu.no_such"),  # A cycle.
    ],
)
def test_name_is_followed_through_the_modules_beside_the_script(lines, tmp_path, helper, code):
    (tmp_path / "helper.py").write_text(helper)
    assert lines(code) == [2]


def test_relative_imports_are_followed(tmp_path):
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("from .names import ipu")
    (tmp_path / "package" / "names.py").write_text("from tensorflow.python import ipu")
    (inner / "__init__.py").write_text("")
    (inner / "part.py").write_text("from .. import ipu\nfrom ..names import ipu as same\nipu.no_such\nsame.no_such")
    script = tmp_path / "script.py"
    script.write_text("import package.inner.part\npackage.ipu.no_such")
    places = [(Path(finding.path).name, finding.line) for finding in _missing.missing(_project.of_script(script))]
    assert places == [("script.py", 2), ("part.py", 3), ("part.py", 4)]


def test_folder_is_read_whole_with_the_names_that_change_nothing(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one.py").write_text("import common\ncommon.ipu.scopes.ipu_jit_scope(None)")
    (tmp_path / "common.py").write_text("from tensorflow.python import ipu")
    (tmp_path / "two.py").write_text("from common import ipu\nipu.no_such")
    projects = _project.of_all([tmp_path])
    missing = {finding for project in projects for finding in _missing.missing(project)}
    recorded = [finding for project in projects for finding in _missing.recorded(project)]
    assert [(finding.path, finding.line) for finding in missing] == [(str(tmp_path / "two.py"), 2)]
    assert [(finding.path, finding.line) for finding in recorded] == [(str(tmp_path / "deep" / "one.py"), 2)]
    assert "`tensorflow.python.ipu.scopes.ipu_jit_scope` changes no result: " in recorded[0].message


@pytest.mark.parametrize(
    "code",
    [
        "text = (" + "\n + ".join(f"'line {number}'" for number in range(1000)) + ")\n",
        "if x == 0:\n pass\n" + "".join(f"elif x == {number}:\n pass\n" for number in range(1, 1000)),
        "import os\nx0 = os\n" + "".join(f"x{number + 1} = x{number}\n" for number in range(1000)),
        "\n".join(f"x{number} = x{number + 1}" for number in range(1000)) + "\nx1000 = x0\n",
        "x = y" + ".a()" * 500 + "\n",
    ],
)
def test_long_sums_and_conditions_are_read(lines, code):
    use = "from tensorflow.python import ipu\nipu.no_such\n"
    assert lines(code + use) == [code.count("\n") + 2]


@pytest.mark.parametrize("code", ["x = " + "+".join(["1"] * 50000), "x = " + "-" * 100000 + "1"])
def test_file_that_is_too_deep_is_left_out(tmp_path, code):
    (tmp_path / "table.py").write_text(f"import keras\n{code}\n")
    script = tmp_path / "script.py"
    script.write_text("import table")
    project = _project.of_script(script)
    assert list(project.files) == [script]
    assert [(finding.path, finding.message) for finding in project.unreadable] == [
        (str(tmp_path / "table.py"), "its code is nested too deeply")
    ]
    script.write_text("import keras")
    project = _project.of_script(script)
    assert (project.siblings, project.unreadable) == ({}, [])
