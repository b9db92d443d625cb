"""A process of `conftest.py`: runs the functions that it is sent, one after the other, and answers what becomes of each.

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
from functools import cache
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any


@cache
def load(path: str) -> Any:
    """The module of this file, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"cases_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fresh() -> None:
    """Nothing is configured, and the compatibility layer is not installed, when a function begins."""
    gc.collect()
    if "tensorflow_ipu" in sys.modules:
        sys.modules["tensorflow_ipu"].config.reset_ipu_configuration()
        sys.modules["tensorflow_ipu"].compat.uninstall()
        sys.modules["keras"].backend.clear_session(free_memory=False)


def answer(path: str, names: str, args: Any, kwargs: Any) -> tuple[Any, ...]:
    try:
        import tensorflow as tf

        fresh()
        function: Any = load(path)
        for name in names.split("."):
            function = getattr(function, name)
        value = function(*args, **kwargs)
        arrays = tf.Tensor, tf.Variable
        return (tf.nest.map_structure(lambda leaf: leaf.numpy() if isinstance(leaf, arrays) else leaf, value),)
    except BaseException as exc:
        kinds = tuple(kind.__name__ for kind in type(exc).__mro__)
        return None, kinds, str(exc), "".join(traceback.format_exception(exc))


def main() -> None:
    folder, worker = Path(sys.argv[1]), os.environ["PMI_RANK"]
    # First of all: MPI prints too.
    output = os.open(folder / f"output{worker}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    (folder / f"worker{worker}").mkdir()
    os.chdir(folder / f"worker{worker}")
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection = Client(str(folder / "socket"), "AF_UNIX")
    connection.send((int(worker), os.getpid()))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            os._exit(0)  # What threads still do at the end of a process is not what is tested here.
        connection.send(answer(*request))


main()
