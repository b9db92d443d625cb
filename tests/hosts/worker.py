"""A process of `processes.py`: runs the functions that it is sent, one after the other, and answers with what becomes of each.

Its argument is the folder of the socket to connect to.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import signal
import sys
import traceback
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

modules: dict[str, Any] = {}


def load(path: str) -> Any:
    """The module of this file, under a name of its own."""
    if path not in modules:
        name = f"cases_{len(modules)}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        modules[path] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[path])
    return modules[path]


def plain(value: Any) -> Any:
    """What a function returned, with arrays in the place of tensors and variables."""
    import tensorflow as tf

    def array(leaf: Any) -> Any:
        return leaf.numpy() if isinstance(leaf, (tf.Tensor, tf.Variable)) else leaf

    return tf.nest.map_structure(array, value)


def fresh() -> None:
    """Nothing is configured, and the compatibility layer is not installed, when a function begins."""
    gc.collect()
    if "tensorflow_ipu" in sys.modules:
        sys.modules["tensorflow_ipu"].config.reset_ipu_configuration()
        sys.modules["tensorflow_ipu"].compat.uninstall()
        sys.modules["keras"].backend.clear_session(free_memory=False)


def answer(path: str, names: str, args: Any, kwargs: Any) -> tuple[Any, ...]:
    try:
        fresh()
        function: Any = load(path)
        for name in names.split("."):
            function = getattr(function, name)
        return "returned", plain(function(*args, **kwargs))
    except BaseException as exc:
        kinds = [kind.__name__ for kind in type(exc).__mro__]
        return "raised", kinds, str(exc), "".join(traceback.format_exception(exc))


def main() -> None:
    folder, worker = Path(sys.argv[1]), int(os.environ["PMI_RANK"])
    # First of all: MPI prints too.
    output = os.open(folder / f"output{worker}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    (folder / f"worker{worker}").mkdir()
    os.chdir(folder / f"worker{worker}")
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection = Client(str(folder / "socket"), "AF_UNIX")
    connection.send((worker, os.getpid()))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            break
        if request is None:
            break
        reply = answer(*request)
        sys.stdout.flush()
        try:
            connection.send(reply)
        except Exception as exc:  # What it returned cannot be pickled.
            connection.send(("raised", [type(exc).__name__], str(exc), ""))
    sys.stdout.flush()
    # What threads still do at the end of a process is not what is tested here.
    os._exit(0)


main()
