"""Reads and checks the environment variables of the package, and sets up its logging."""

from __future__ import annotations

import functools
import json
import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorflow_ipu._base import requirements

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})


def text_of(variable: str, environ: Mapping[str, str] | None) -> str:
    """Returns the value of `variable` without surrounding white space; `""` if it is unset."""
    return (os.environ if environ is None else environ).get(variable, "").strip()


def switch(variable: str, default: bool, environ: Mapping[str, str] | None) -> bool:
    """Returns the value of a variable that is on or off; `default` if it is unset or empty."""
    text = text_of(variable, environ).lower()
    if text not in FALSE | TRUE | {""}:
        raise ValueError(
            f"`{variable}={text}` is neither on nor off; set it to `1` or `0`, or unset it for `{int(default)}`"
        )
    return text in TRUE if text else default


def positive_int(variable: str, default: int, limit: int, environ: Mapping[str, str] | None) -> int:
    """Returns the value of a variable that is a whole number from 1 to `limit`; `default` if it is unset.

    Error messages name the default unless it is 0.
    """
    text = text_of(variable, environ)
    if not text:
        return default
    unset = f"or unset it{f' for {default}' if default else ''}"
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not digits:
        raise ValueError(
            f"`{variable}={text}` is not a positive whole number; set it to a number from 1 to {limit}, {unset}"
        )
    # The length is checked first, since `int` rejects thousands of digits.
    if len(digits) > len(str(limit)) or int(digits) > limit:
        shown = text if len(text) < 40 else text[:20] + "..."
        raise ValueError(f"`{variable}={shown}` is too high; set it to a number from 1 to {limit}, {unset}")
    return int(digits)


def json_object(variable: str, text: str, example: str) -> dict[str, Any]:
    """Returns the JSON object in `text`, the value of `variable`; raises `ValueError` if `text` is no JSON object."""
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ValueError(f"`{variable}={text}` is not valid JSON ({exc}); write it as in `{example}`") from exc
    if not isinstance(value, dict):
        raise ValueError(f"`{variable}={text}` is not a JSON object; write it as in `{example}`")
    return value


# `1`, `true` or `True`: `tf.keras` is Keras 2 (`tf_keras`), otherwise Keras 3. Read by the import of the package, unless
# TensorFlow has read it before.
KERAS_VARIABLE = "TF_USE_LEGACY_KERAS"
# `tf_keras` requires the package `tensorflow`, which must not be installed together with `tensorflow-cpu`.
KERAS_2_COMES_BY = (
    "`pip install 'tensorflow-ipu[keras2]'` installs it; if TensorFlow is installed as `tensorflow-cpu`, use `pip install"
    f" --no-deps 'tf_keras~={requirements.tensorflow_release()}.0'`"
)


_settled_keras: bool | None = None  # Written once, by the import of the package.


def settle_keras(is_2: bool) -> None:
    """Sets what `uses_keras_2` returns from now on, even if the variable changes."""
    global _settled_keras  # noqa: PLW0603
    _settled_keras = is_2


def uses_keras_2() -> bool:
    """Returns True if `tf.keras` is Keras 2, the package `tf_keras`.

    Reads the variable until `settle_keras` is called.
    """
    return asks_for_keras_2(os.environ) if _settled_keras is None else _settled_keras


def asks_for_keras_2(environ: Mapping[str, str]) -> bool:
    """Returns True if the variable has one of the values for which TensorFlow uses Keras 2."""
    return environ.get(KERAS_VARIABLE) in ("1", "True", "true")


# An empty variable counts as unset. A switch is on (`1`, `true`, `yes`, `on`) or off (`0`, `false`, `no`, `off`); its
# case is ignored. Reading a malformed value raises a `ValueError` with the variable, its value and a valid example.

# The number of `/device:IPU:n` that TensorFlow registers: 1 to 1,024, by default 8. Read by the import of the package.
DEVICES_VARIABLE = "TENSORFLOW_IPU_DEVICES"
# The number of IPUs of the emulated machine: 1 to 65,536, by default 64. Read by each configuration.
COUNT_VARIABLE = "TENSORFLOW_IPU_COUNT"
# A switch, by default on: kernels of the host may compute layers of programs. Read by each new strategy.
HOST_KERNELS_VARIABLE = "TENSORFLOW_IPU_HOST_KERNELS"
# The path of a Python file that emulates operations which the user wrote in C++ for tiles. Read by the first such
# operation.
EMULATIONS_VARIABLE = "TENSORFLOW_IPU_EMULATIONS"
# The lowest level of log messages that go to stderr: `TRACE`, `DEBUG`, `INFO`, `WARN`, `ERR` or `OFF`; case is ignored.
# If unset, the settings of Python's `logging` apply. Read by the import of the package.
LOG_LEVEL_VARIABLE = "TENSORFLOW_IPU_LOG_LEVEL"
# The same level as a number: 0 is `WARN`, 1 `INFO`, 2 `DEBUG`, 3 and above `TRACE`. Ignored if
# `TENSORFLOW_IPU_LOG_LEVEL` is set. Read by the import of the package.
VLOG_VARIABLE = "TF_POPLAR_VLOG_LEVEL"
# A switch: long work shows its progress on stderr. If unset, `--show_progress_bar` of `TF_POPLAR_FLAGS` decides;
# without that, progress is shown in terminals and notebooks only. Read when the work begins.
PROGRESS_VARIABLE = "TENSORFLOW_IPU_PROGRESS"
# A switch, by default off: tracebacks show the lines of libraries too. Otherwise, they only show lines of the user's code.
# Read for each error.
TRACEBACKS_VARIABLE = "TENSORFLOW_IPU_FULL_TRACEBACKS"
# A switch, by default off: executables that other users have stored in the cache are loaded. Read when a cache folder
# is set.
TRUST_VARIABLE = "TENSORFLOW_IPU_TRUST_EXECUTABLES"
# Flags separated by spaces, as `PoplarFlags` describes. Each use reads the current value.
FLAGS_VARIABLE = "TF_POPLAR_FLAGS"
# A JSON object of engine options. Those that begin with `autoReport.` request a report of each program; see
# `report_directory`. All other options are ignored. Read by each new strategy.
ENGINE_VARIABLE = "POPLAR_ENGINE_OPTIONS"

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERR", "OFF")

DEFAULT_DEVICES = 8
DEFAULT_COUNT = 64

# The largest IPU-POD had 65,536 IPUs. Each replica takes one thread here.
MOST_IPUS = 65536
# TensorFlow creates all devices again for each session, so their number is limited too.
_LIMITS = {DEVICES_VARIABLE: 1024, COUNT_VARIABLE: MOST_IPUS}

_AUTO_REPORT = "autoReport."
_EXAMPLE = '{"autoReport.all":"true","autoReport.directory":"reports"}'
# Each of these options requests a report. The options below select the contents of reports, and are ignored; only
# `directory` is used.
_REPORTING = ("all", "outputGraphProfile", "outputExecutionProfile")
_OUTPUTS = ("outputArchive", "outputDebugInfo", "outputLoweredVars", "outputSerializedGraph")
_OTHER_REPORT_OPTIONS = frozenset({"directory", "executionProfileProgramRunCount", "streamAtEachRun", *_OUTPUTS})
_SYNTHETIC_CATEGORIES = frozenset({"seed", "infeed", "outfeed", "hostembedding", "parameters"})


@dataclass(frozen=True)
class PoplarFlags:
    """The flags in `TF_POPLAR_FLAGS`.

    Attributes:
      use_ipu_model: `--use_ipu_model`: programs run on the IPU Model.
      use_synthetic_data: `--use_synthetic_data`: no data pass between host and device.
      synthetic_data_categories: `--synthetic_data_categories=infeed,outfeed`: no data of these categories pass. The
        categories are `seed`, `infeed`, `outfeed`, `hostembedding` and `parameters`.
      executable_cache_path: `--executable_cache_path=FOLDER`: compiled programs are kept there for other processes.
      show_progress_bar: `--show_progress_bar=true`, `false` or `auto` (None). `TENSORFLOW_IPU_PROGRESS` has priority.
      others: All other flags, which have no effect.
    """

    use_ipu_model: bool = False
    use_synthetic_data: bool = False
    synthetic_data_categories: frozenset[str] = frozenset()
    executable_cache_path: str = ""
    show_progress_bar: bool | None = None
    others: tuple[str, ...] = ()

    def synthetic(self, category: str) -> bool:
        """Returns True if data of `category`, such as `"infeed"`, is synthetic. Case is ignored."""
        return self.use_synthetic_data or category.lower() in self.synthetic_data_categories


@functools.lru_cache(maxsize=1)
def registered_devices() -> int:
    """Returns the number of registered `/device:IPU:n`. Like the kernels, reads `TENSORFLOW_IPU_DEVICES` only once."""
    return positive_int(DEVICES_VARIABLE, DEFAULT_DEVICES, _LIMITS[DEVICES_VARIABLE], None)


def ipu_count(environ: Mapping[str, str] | None = None) -> int:
    """Returns the number of IPUs of the emulated machine (`TENSORFLOW_IPU_COUNT`)."""
    return positive_int(COUNT_VARIABLE, DEFAULT_COUNT, _LIMITS[COUNT_VARIABLE], environ)


def way_out(variable: str, needed: int) -> str:
    """Returns the end of an error message: what to do if `needed` is more than the value of `variable`."""
    if needed > _LIMITS[variable]:
        return f"choose less: `{variable}` goes up to {_LIMITS[variable]}"
    return f"start the program with the environment variable `{variable}={needed}` or more"


def host_kernels(environ: Mapping[str, str] | None = None) -> bool:
    """Returns True if kernels of the host may compute layers of programs (`TENSORFLOW_IPU_HOST_KERNELS`)."""
    return switch(HOST_KERNELS_VARIABLE, True, environ)


def emulations(environ: Mapping[str, str] | None = None) -> str | None:
    """Returns the path of the file that emulates the user's C++ operations (`TENSORFLOW_IPU_EMULATIONS`), or None."""
    path = text_of(EMULATIONS_VARIABLE, environ)
    if path and not os.path.isfile(path):
        raise ValueError(f"`{EMULATIONS_VARIABLE}={path}` names no Python file; set it to the path of one, or unset it")
    return path or None


def full_tracebacks(environ: Mapping[str, str] | None = None) -> bool:
    """Returns True if tracebacks show more than the lines of the user (`TENSORFLOW_IPU_FULL_TRACEBACKS`)."""
    return switch(TRACEBACKS_VARIABLE, False, environ)


def log_level(environ: Mapping[str, str] | None = None) -> str | None:
    """Returns the log level, one of `LOG_LEVELS`; None if neither variable is set.

    `TENSORFLOW_IPU_LOG_LEVEL` has priority over `TF_POPLAR_VLOG_LEVEL`.
    """
    text = text_of(LOG_LEVEL_VARIABLE, environ)
    if text:
        if text.upper() in LOG_LEVELS:
            return text.upper()
        raise ValueError(
            f"`{LOG_LEVEL_VARIABLE}={text}` is not a log level; set it to one of"
            f" {', '.join(f'`{level}`' for level in LOG_LEVELS)}, or unset it"
        )
    text = text_of(VLOG_VARIABLE, environ)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(
            f"`{VLOG_VARIABLE}={text}` is not a log level; set it to a whole number from 0 to 3, or unset it"
        )
    return ("WARN", "INFO", "DEBUG", "TRACE")[min(int(text[:9]), 3)]


def poplar_flags(environ: Mapping[str, str] | None = None) -> PoplarFlags:
    """Parses the current value of `TF_POPLAR_FLAGS`; raises `ValueError` if it is malformed."""
    text = text_of(FLAGS_VARIABLE, environ)
    try:
        flags = shlex.split(text)
    except ValueError as exc:
        raise ValueError(f"`{FLAGS_VARIABLE}={text}` has unbalanced quotes; close each quotation mark") from exc
    ipu_model = synthetic = False
    cache = ""
    progress_bar: bool | None = None
    categories: set[str] = set()
    others: list[str] = []
    for flag in flags:
        name, _, value = flag.partition("=")
        if name == "--use_ipu_model":
            ipu_model = _switch(flag, value)
        elif name == "--use_synthetic_data":
            synthetic = _switch(flag, value)
        elif name == "--synthetic_data_categories":
            categories.update(_categories(flag, value))
        elif name == "--executable_cache_path":
            if not value:
                raise ValueError(f"`{flag}` in `{FLAGS_VARIABLE}` names no folder; write `{name}=FOLDER`")
            cache = value
        elif name == "--show_progress_bar":
            progress_bar = None if value.lower() == "auto" else _switch(flag, value)
        else:
            others.append(flag)
    return PoplarFlags(ipu_model, synthetic, frozenset(categories), cache, progress_bar, tuple(others))


def trusts_executables(environ: Mapping[str, str] | None = None) -> bool:
    """Returns True if cached executables of other users are loaded (`TENSORFLOW_IPU_TRUST_EXECUTABLES`)."""
    return switch(TRUST_VARIABLE, False, environ)


def progress(environ: Mapping[str, str] | None = None) -> bool | None:
    """Returns True or False if the environment switches progress on or off; None for terminals and notebooks only.

    `TENSORFLOW_IPU_PROGRESS` has priority over `--show_progress_bar` in `TF_POPLAR_FLAGS`.
    """
    if text_of(PROGRESS_VARIABLE, environ):
        return switch(PROGRESS_VARIABLE, True, environ)
    return poplar_flags(environ).show_progress_bar


def report_directory(environ: Mapping[str, str] | None = None) -> str | None:
    """Returns the folder for reports on compiled programs (`POPLAR_ENGINE_OPTIONS`); None for no reports.

    Reports are requested by `"true"` for `autoReport.all`, `autoReport.outputGraphProfile` or
    `autoReport.outputExecutionProfile`. `autoReport.directory` is the folder, by default the current one.

    Raises:
      ValueError: The variable is not a JSON object, or has an unsupported `autoReport.` option or value.
    """
    text = text_of(ENGINE_VARIABLE, environ)
    if not text:
        return None
    options = json_object(ENGINE_VARIABLE, text, _EXAMPLE)
    report_options = {
        name.removeprefix(_AUTO_REPORT): value for name, value in options.items() if name.startswith(_AUTO_REPORT)
    }
    unknown = sorted(set(report_options) - _OTHER_REPORT_OPTIONS - set(_REPORTING))
    if unknown:
        supported = ", ".join(f"`{_AUTO_REPORT}{name}`" for name in sorted({*_OTHER_REPORT_OPTIONS, *_REPORTING}))
        raise ValueError(f"`{_AUTO_REPORT}{unknown[0]}` in `{ENGINE_VARIABLE}` is not known; there are {supported}")
    requests = [_truth(name, report_options[name]) for name in _REPORTING if name in report_options]
    directory = report_options.get("directory", ".")
    if not isinstance(directory, str) or not directory:
        raise ValueError(f"`{_AUTO_REPORT}directory` in `{ENGINE_VARIABLE}` must be a folder, but is {directory!r}")
    return directory if any(requests) else None


def _truth(name: str, value: object) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(f'`{_AUTO_REPORT}{name}` in `{ENGINE_VARIABLE}` must be "true" or "false", but is {value!r}')
    return text == "true"


def _switch(flag: str, value: str) -> bool:
    if value.lower() in TRUE | {""}:
        return True
    if value.lower() in FALSE:
        return False
    raise ValueError(f"`{flag}` in `{FLAGS_VARIABLE}` is neither on nor off; write `true`, `false` or no value")


def _categories(flag: str, value: str) -> set[str]:
    # Poplar's flag and `SyntheticDataCategory` spell HostEmbedding differently, so underscores are ignored.
    names = {name.strip().lower().replace("_", "") for name in value.split(",")} - {""}
    unknown = sorted(names - _SYNTHETIC_CATEGORIES)
    if unknown or not names:
        raise ValueError(
            f"`{flag}` in `{FLAGS_VARIABLE}` names {', '.join(f'`{name}`' for name in unknown) or 'no category'};"
            f" write a comma-separated list of {', '.join(sorted(_SYNTHETIC_CATEGORIES))}"
        )
    return names


# TensorFlow's description of the cluster, as JSON. MPI already has this information, so the variable may be unset; if
# it is set, it must agree with MPI. Read when the worker joins the cluster.
TF_CONFIG_VARIABLE = "TF_CONFIG"
# The number of seconds that workers wait for each other: above 0, up to 86,400, by default 60. Read when the worker
# joins.
TIMEOUT_VARIABLE = "TENSORFLOW_IPU_TIMEOUT"
# The number of replicas of each worker, which `python -m tensorflow_ipu run --replicas` sets. If unset, programs choose
# it.
REPLICAS_VARIABLE = "TENSORFLOW_IPU_REPLICAS"
# The number of IPUs of each replica, which `python -m tensorflow_ipu run` sets. If unset, programs choose it.
IPUS_PER_REPLICA_VARIABLE = "TENSORFLOW_IPU_IPUS_PER_REPLICA"

DEFAULT_TIMEOUT = 60.0

# One day. A higher value was probably meant in another unit.
MOST_SECONDS = 86400


def tf_config(environ: Mapping[str, str] | None = None) -> str | None:
    """Returns the JSON text of `TF_CONFIG`, which describes the cluster; None if it is unset or empty."""
    return text_of(TF_CONFIG_VARIABLE, environ) or None


def worker_timeout(environ: Mapping[str, str] | None = None) -> float:
    """Returns the number of seconds that workers wait for each other (`TENSORFLOW_IPU_TIMEOUT`)."""
    text = text_of(TIMEOUT_VARIABLE, environ)
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(
            f"`{TIMEOUT_VARIABLE}={text}` is no number of seconds above 0 and up to {MOST_SECONDS}; set it to such a number, or"
            f" unset it for {DEFAULT_TIMEOUT:g}"
        )
    return seconds


def local_replicas(environ: Mapping[str, str] | None = None) -> int | None:
    """Returns the number of replicas of each worker (`TENSORFLOW_IPU_REPLICAS`); None if programs choose it."""
    return positive_int(REPLICAS_VARIABLE, 0, MOST_IPUS, environ) or None


def ipus_per_replica(environ: Mapping[str, str] | None = None) -> int | None:
    """Returns the number of IPUs of each replica (`TENSORFLOW_IPU_IPUS_PER_REPLICA`); None if programs choose it."""
    return positive_int(IPUS_PER_REPLICA_VARIABLE, 0, MOST_IPUS, environ) or None


def default_ipus(environ: Mapping[str, str] | None = None) -> int:
    """Returns the number of IPUs of `/device:IPU:0` if nothing is configured: as many as a worker's replicas need."""
    replicas, size = local_replicas(environ) or 1, ipus_per_replica(environ) or 1
    ipus = replicas * size
    if ipus > ipu_count(environ):
        raise ValueError(
            f"`{REPLICAS_VARIABLE}` and `{IPUS_PER_REPLICA_VARIABLE}` request {replicas} replicas of {size} IPUs, but"
            f" there are {ipu_count(environ)} IPUs: {way_out(COUNT_VARIABLE, ipus)}"
        )
    return ipus


ROOT = "tensorflow_ipu"
# The level below `logging.DEBUG`, for messages of each run.
TRACE = 5

_LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL + 1,
}
_FORMAT = "[%(asctime)s] [%(name)s] [%(levelname)s] %(message)s"


def install_logging(environ: Mapping[str, str] | None = None) -> None:
    """Makes the package's loggers write to stderr if the environment sets a level; otherwise changes no handler."""
    logging.addLevelName(TRACE, "TRACE")
    level = log_level(environ)
    if level is None:
        return
    logger = logging.getLogger(ROOT)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[level])
    logger.propagate = False  # The handlers of the root logger would write each message a second time.
