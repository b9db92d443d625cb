"""Reading a script finds what it lacks, and nothing that it has."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tensorflow_ipu.compat import _scan


@pytest.fixture
def lines(tmp_path: Path):
    """The lines of a script at which something is missing."""

    def scan(code: str) -> list[int]:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        return [found.line for found in _scan.scan(script)]

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
        "import os\nimport popdist.tensorflow",
        "import os\nfrom tensorflow.python.ipu import (\n loops, no_such)".replace("\n loops", " loops"),
        "def f():\n    from tensorflow.python.ipu import no_such",
        "import os\nfrom tensorflow.compiler.plugin.poplar.driver.config_pb2 import IpuOptions",
    ],
)
def test_missing_name_is_found_on_its_line(lines, code: str) -> None:
    assert lines(code) == [2]


@pytest.mark.parametrize(
    "code",
    [
        "from tensorflow.python import ipu\nipu.loops.repeat(1)\nipu.config.IPUConfig().no_such = 1",
        "from tensorflow.python.ipu.config import IPUConfig\nIPUConfig.no_such",
        "from tensorflow.python.ipu import config\nconfig = config.IPUConfig()\nconfig.auto_select_ipus = 1",
        "from tensorflow.python.ipu import loops\ndef f(loops):\n    return loops.no_such",
        "try:\n    from tensorflow.python.ipu import no_such\nexcept ImportError:\n    pass",
        "try:\n    import popdist\nexcept (OSError, ModuleNotFoundError):\n    pass",
        "import tensorflow as tf\ntf.keras.layers.Dense(1)\ntf.no_such",
        "import os.path\nos.no_such",
        "import tensorflow as tf\nkeras = tf.keras\nkeras = None\nkeras.ipu.no_such",
        "import keras\nkeras = keras.ipu\nkeras.no_such",
        "from tensorflow.python.ipu.loops import *",
        "from . import no_such",
        "this is no Python",
    ],
)
def test_script_that_lacks_nothing_is_let_through(lines, code: str) -> None:
    assert lines(code) == []


def test_try_that_catches_something_else_is_no_guard(lines) -> None:
    assert lines("try:\n    from tensorflow.python.ipu import no_such\nexcept ValueError:\n    pass") == [2]


def test_modules_beside_the_script_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import script")  # A cycle.
    (tmp_path / "package" / "part.py").write_text("\nfrom tensorflow.python.ipu.loops import no_such")
    script = tmp_path / "script.py"
    script.write_text("from package import part")
    (found,) = _scan.scan(script)
    assert (found.path, found.line) == (str(tmp_path / "package" / "part.py"), 2)
    assert "`no_such`" in found.message
