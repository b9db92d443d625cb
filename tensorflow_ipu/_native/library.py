"""Checks and loads the compiled library: `ops` has its TensorFlow operations, `native` its C functions (ctypes)."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._tensorflow import devices, op_errors
from tensorflow_ipu.errors import LibraryError

_logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parents[1] / "kernels"
LIBRARY = _FOLDER / "libtensorflow_ipu.so"
BUILD_INFO = _FOLDER / "build_info.json"

_REBUILD = (
    "Build it for the installed one: `pip install --force-reinstall --no-deps tensorflow-ipu` for a wheel of that"
    " TensorFlow, or `make build` in a checkout"
)

_REPAIR = (
    "Install the package again: `pip install --force-reinstall --no-deps tensorflow-ipu`, or `make build` in a checkout"
)

_INT = ctypes.c_int64
_FLAG = ctypes.c_int32
_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_NATIVE_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    name: (result, arguments)
    for names, result, arguments in (
        ("ipu_compiles", _FLAG, [_TEXT, _INT]),
        ("ipu_configure_devices", None, [ctypes.POINTER(_FLAG), ctypes.POINTER(_FLAG), _FLAG]),
        ("ipu_open_workers", _TEXT, [_TEXT, ctypes.c_uint64, _TEXT]),
        ("ipu_join_workers", _TEXT, [ctypes.c_double, ctypes.c_double]),
        (
            (
                "ipu_embedding_drop ipu_host_function_drop ipu_infeed_drop ipu_random_drop"
                " ipu_set_chunk_bytes ipu_set_wait_limit ipu_site_drop ipu_user_function_drop"
            ),
            None,
            [_INT],
        ),
        ("ipu_embedding_new", _INT, [_POINTER, _INT, _INT, _FLAG]),
        ("ipu_embedding_open", None, [_INT, _FLAG]),
        ("ipu_end_process ipu_interrupt_disarm ipu_random_forget ipu_run_application_on_this_thread", None, []),
        ("ipu_hold_executable", None, [_TEXT, _TEXT, _TEXT, _INT]),
        ("ipu_host_function_new", _INT, [_INT]),
        ("ipu_host_layers ipu_journal", _TEXT, []),
        ("ipu_infeed_new", _INT, [_TEXT, _INT, _INT, _FLAG, _INT]),
        (
            (
                "ipu_infeed_ready ipu_infeed_waiting ipu_outfeed_replicas ipu_outfeed_layout ipu_outfeed_ready"
                " ipu_outfeed_woken_ns ipu_random_new ipu_runs_waiting"
            ),
            _INT,
            [_INT],
        ),
        ("ipu_interrupt_arm", None, [_FLAG]),
        ("ipu_computed_type ipu_interrupt_watch ipu_one_dnn_computes", _FLAG, [_FLAG]),
        ("ipu_metrics", _TEXT, [_INT]),
        ("ipu_outfeed_drop ipu_shut_down", _FLAG, [_INT]),
        ("ipu_outfeed_new", _INT, [_TEXT, _FLAG]),
        ("ipu_outfeed_place", _FLAG, [_POINTER, _INT, _POINTER, _POINTER]),
        ("ipu_outfeed_rows", _INT, [_INT, _INT, _POINTER, _INT, _INT, _POINTER, _POINTER]),
        ("ipu_outfeed_stacked", _INT, [_INT, _INT, _POINTER, _INT, _POINTER]),
        ("ipu_random_reset", None, [_INT, ctypes.c_uint64, _FLAG]),
        ("ipu_release_executable", None, [_TEXT]),
        ("ipu_set_executable_cache", None, [_TEXT, _INT, _TEXT, _FLAG]),
        ("ipu_site_new", _INT, [_INT, _TEXT, _TEXT, _INT, _FLAG]),
        ("ipu_small_convolution", _FLAG, [ctypes.POINTER(_INT), _INT, _INT, _FLAG]),
        ("ipu_user_function_new", _INT, [_POINTER]),
    )
    for name in names.split()
}


def plain_version(version: str) -> str:
    """Returns `version` without the separators by which pip and TensorFlow differ in pre-releases.

    `"2.22.0.dev1"` (pip) and `"2.22.0-dev1"` (TensorFlow) become `"2.22.0dev1"`.
    """
    return re.sub(r"[-_.]?(dev|rc)[-_.]?", r"\1", version)


def check_build(library: Path, build_info: Path, running: str) -> None:
    """Raises `LibraryError` if the library is missing, damaged, or built for another TensorFlow.

    Loading such a library would crash the process.
    """
    if not library.is_file():
        raise LibraryError(
            f"the kernel library `{library}` is missing: the package was installed without being built. Install g++"
            " (`apt-get install g++`), then `pip install .`, or run `make build` in the checkout"
        )
    try:
        record = json.loads(build_info.read_text())
        built, digest = record["tensorflow"], record["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise LibraryError(
            f"`{build_info}` does not say which TensorFlow release the kernels were built for. {_REBUILD}"
        ) from exc
    if plain_version(built) != plain_version(running):
        raise LibraryError(
            f"the kernel library was built for TensorFlow `{built}`, but TensorFlow `{running}` runs, and its C++"
            f" interface differs from release to release. {_fitting(running, record.get('supported', ()))}, or"
            f" `pip install tensorflow-cpu=={built}`"
        )
    try:
        current_digest = hashlib.sha256(library.read_bytes()).hexdigest()
    except OSError as exc:
        raise LibraryError(f"the kernel library `{library}` cannot be read: {exc}. {_REPAIR}") from exc
    if current_digest != digest:
        raise LibraryError(
            f"the kernel library `{library}` of {library.stat().st_size} bytes is not the one that was built: it was"
            f" truncated or replaced, and its SHA-256 is not the one in `{build_info.name}`. {_REPAIR}"
        )


def _fitting(running: str, supported: Sequence[str]) -> str:
    """Returns advice on what to install for the TensorFlow that runs, for the end of a sentence.

    The last number of a wheel's version encodes the TensorFlow release: `.221` is for 2.21.
    """
    release = ".".join(running.split(".")[:2])
    if release not in supported:
        return f"There are only wheels for {' and '.join(supported)}: build it in a checkout by `make build`"
    version = importlib.metadata.version("tensorflow-ipu").rpartition(".")[0]
    wheel = f"tensorflow-ipu=={version}.{release.replace('.', '')}"
    return f"Install the wheel for it: `pip install --force-reinstall --no-deps {wheel}`, or `make build` in a checkout"


def load_user_library(path: str) -> ctypes.CDLL:
    """Loads a library of the user."""
    return ctypes.CDLL(path)


def check_runtime_not_started() -> None:
    """Raises `LibraryError` if TensorFlow's runtime has started: it looks for devices only once."""
    if devices.are_in_use():
        raise LibraryError(
            "TensorFlow's runtime started before `import tensorflow_ipu`, and it accepts no new devices after that."
            " Import `tensorflow_ipu` before the first tensor is created or the first device is listed; in a notebook,"
            " restart the kernel and import it in the first cell"
        )


# Operations that run eagerly on behalf of users. Errors of operations that run programs are explained by `programs`.
_EAGER = ("ipu_host_exchange", "ipu_infeed_start", "ipu_infeed_stop")
_EAGER += ("ipu_outfeed_delete", "ipu_outfeed_dequeue")


def _load_ops() -> ModuleType:
    try:
        loaded = tf.load_op_library(str(LIBRARY))
    except (tf.errors.OpError, OSError, RuntimeError) as exc:
        raise LibraryError(f"the kernel library `{LIBRARY}` does not load: {exc}. {_REBUILD}") from exc
    for name in [name for name in vars(loaded) if name.startswith("ipu_")]:
        setattr(loaded, name, op_errors.with_plain_errors(getattr(loaded, name), eagerly=name in _EAGER))
    return loaded


def _load_native() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
        for name, (result, arguments) in _NATIVE_SIGNATURES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as exc:
        raise LibraryError(
            f"the kernel library `{LIBRARY}` is not of this version of the package: {exc}. {_REBUILD}"
        ) from exc
    return library


check_build(LIBRARY, BUILD_INFO, tf.__version__)
check_runtime_not_started()
environment.registered_devices()  # The kernels read the same variable, but only this raises if it is malformed.
ops = _load_ops()
native = _load_native()
_logger.debug("loaded `%s`, built for TensorFlow %s", LIBRARY, tf.__version__)
