"""A process of `conftest.py`: runs functions on request, one at a time, and returns their results.

Its arguments are the time limit of a function in seconds, and the file descriptor of each worker's pipe.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import sys
import traceback
from functools import cache
from multiprocessing.connection import Connection
from typing import Any


@cache
def load(path: str) -> Any:
    """Imports the module of a file under a unique name."""
    spec = importlib.util.spec_from_file_location("cases_of_" + os.path.basename(path)[:-3], path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(path: str, name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
    """Returns the result of a function, or the traceback of its exception with the values of variables."""
    try:
        import tensorflow as tf

        import tensorflow_ipu as ipu

        gc.collect()
        ipu.config.reset_ipu_configuration()
        ipu.compat.uninstall()
        sys.modules["keras"].backend.clear_session(free_memory=False)
        value = getattr(load(path), name)(*args, **kwargs)
        arrays = tf.Tensor, tf.Variable
        return tf.nest.map_structure(lambda leaf: leaf.numpy() if isinstance(leaf, arrays) else leaf, value), ""
    except BaseException as exc:
        return None, "".join(traceback.TracebackException.from_exception(exc, capture_locals=True).format())


if __name__ == "__main__":
    worker = int(os.environ["PMI_RANK"])
    limit, *ends = map(int, sys.argv[1:])
    connection = Connection(ends[worker])
    while True:
        try:
            request = connection.recv()
        except EOFError:
            os._exit(0)  # Threads that are active at the end of the process are not tested.
        faulthandler.dump_traceback_later(limit + worker)  # Workers print one after the other.
        connection.send(answer(*request))
        faulthandler.cancel_dump_traceback_later()
