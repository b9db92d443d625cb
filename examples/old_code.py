"""Runs an unchanged script that was written for IPUs, with the imports of IPU TensorFlow.

`python -m tensorflow_ipu SCRIPT` checks the names in a script and then runs it. Here the script is a text, and the example
installs the compatibility layer itself.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

from tensorflow_ipu import __main__ as command
from tensorflow_ipu import compat

SCRIPT = """
import tensorflow as tf
from tensorflow.python import ipu

config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
strategy = ipu.ipu_strategy.IPUStrategy()

@tf.function(experimental_compile=True)
def program(x):
    return ipu.ops.nn_ops.gelu(x)

with strategy.scope():
    print("gelu(1) =", round(float(strategy.run(program, args=[tf.constant(1.0)])), 3))
"""

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "script.py")
    path.write_text(SCRIPT)
    command.main(["--check", str(path)])
    compat.install()
    try:
        exec(compile(SCRIPT, path, "exec"), {})
    finally:
        compat.uninstall()
