"""An interpreter that imports TensorFlow once, which takes seconds, and forks for each script of the tests.

It does not import the package. Each line of its input is a JSON object with a script, its arguments, folder,
environment and output files. The answer is the process id, and then the exit code when the process has ended. With
`"in_background"`, the exit code is not sent; a later line with only the process id requests it.
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
    """Returns the code of the next script, in a forked process with the arguments and environment of the script."""
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, int):
            answer(exit_code(request))
            continue
        process = os.fork()
        if process:
            answer(process)
            if not request.get("in_background"):
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
gc.set_threshold(20_000, 10, 10)  # The processes of the tests collect less often, too.
# This is at the top level, so that the names of the script stay in `__main__` until the process ends.
exec(next_script())
