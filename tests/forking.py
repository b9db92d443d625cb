"""An interpreter that imports TensorFlow once, which takes seconds, and forks for each script that the tests run.

The package itself it leaves to the scripts. A line of JSON on its input names a script, its arguments, folder, environment
and where its output goes; the answers are the number of the process, and its exit code once it has ended. With `"beside"` the
code is not waited for: a later line asks for it, with the number of the process alone.
"""

import gc
import importlib
import json
import os
import sys
from pathlib import Path
from types import CodeType

import tensorflow as tf  # noqa: F401

importlib.import_module("tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "keras")


def answer(number: int) -> None:
    os.write(1, f"{number}\n".encode())


def exit_code(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def next_script() -> CodeType:
    """In a process of its own for each script: its code, with the process as the script expects it."""
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, int):
            answer(exit_code(request))
            continue
        process = os.fork()
        if process:
            answer(process)
            if not request.get("beside"):
                answer(exit_code(process))
            continue
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), number)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        path, *_ = sys.argv = request["arguments"]
        globals()["__file__"] = path
        return compile(Path(path).read_text(), path, "exec")
    sys.exit()


gc.collect()
gc.freeze()
gc.set_threshold(20_000, 10, 10)  # As in the processes of the tests themselves.
# Here, so that the script's names are those of `__main__` to the end of the process.
exec(next_script())
