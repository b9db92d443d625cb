"""The environment variables that configure the system and the workers of a cluster."""

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
    """What a variable holds, without white space around it; empty where it is unset."""
    return (os.environ if environ is None else environ).get(variable, "").strip()


def switch(variable: str, default: bool, environ: Mapping[str, str] | None) -> bool:
    """A variable that is on or off; `default` where it is unset or empty."""
    text = text_of(variable, environ).lower()
    if text not in FALSE | TRUE | {""}:
        raise ValueError(
            f"`{variable}={text}` is neither on nor off; set it to `1` or `0`, or unset it for `{int(default)}`"
        )
    return text in TRUE if text else default


def choice(variable: str, choices: tuple[str, str], advice: str, environ: Mapping[str, str] | None) -> str:
    """A variable that holds one of two words, in any case; the first one where it is unset or empty."""
    text = text_of(variable, environ).lower() or choices[0]
    if text not in choices:
        raise ValueError(f"`{variable}={text}` is neither `{choices[0]}` nor `{choices[1]}`; {advice}")
    return text


def positive_int(variable: str, default: int, most: int, environ: Mapping[str, str] | None) -> int:
    """A whole number from 1 to `most`; `default` where unset, which messages name unless it is 0."""
    text = text_of(variable, environ)
    if not text:
        return default
    unset = f"or unset it{f' for {default}' if default else ''}"
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not digits:
        raise ValueError(
            f"`{variable}={text}` is not a positive whole number; set it to a number from 1 to {most}, {unset}"
        )
    # By its length first: Python reads no number of thousands of digits.
    if len(digits) > len(str(most)) or int(digits) > most:
        shown = text if len(text) < 40 else text[:20] + "..."
        raise ValueError(f"`{variable}={shown}` is too high; set it to a number from 1 to {most}, {unset}")
    return int(digits)


def json_object(variable: str, text: str, example: str) -> dict[str, Any]:
    """Returns the JSON object that a variable holds."""
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise ValueError(f"`{variable}={text}` is no JSON ({exc}); write it as in `{example}`") from exc
    if not isinstance(found, dict):
        raise ValueError(f"`{variable}={text}` is no JSON object; write it as in `{example}`")
    return found


KERAS_VARIABLE = "TF_USE_LEGACY_KERAS"
# `tf_keras` asks for the package `tensorflow`, which must not meet `tensorflow-cpu`.
KERAS_2_COMES_BY = (
    "`pip install 'tensorflow-ipu[keras2]'` brings it; where TensorFlow is `tensorflow-cpu`, `pip install --no-deps"
    f" 'tf_keras~={requirements.tensorflow_release()}.0'`"
)


_settled_keras: bool | None = None  # Written once, by the import of the package.


def settle_keras(is_2: bool) -> None:
    """Sets what `uses_keras_2` returns from now on, whatever becomes of the variable."""
    global _settled_keras  # noqa: PLW0603
    _settled_keras = is_2


def uses_keras_2() -> bool:
    """Returns True if `tf.keras` is Keras 2, the package `tf_keras`: as settled, or else as the variable says."""
    return asks_for_keras_2(os.environ) if _settled_keras is None else _settled_keras


def asks_for_keras_2(environ: Mapping[str, str]) -> bool:
    """Returns True if the variable asks for Keras 2, by the values that TensorFlow knows."""
    return environ.get(KERAS_VARIABLE) in ("1", "True", "true")


EMULATIONS_VARIABLE = "TENSORFLOW_IPU_EMULATIONS"
DEVICES_VARIABLE = "TENSORFLOW_IPU_DEVICES"
COUNT_VARIABLE = "TENSORFLOW_IPU_COUNT"
FLAGS_VARIABLE = "TF_POPLAR_FLAGS"
HOST_KERNELS_VARIABLE = "TENSORFLOW_IPU_HOST_KERNELS"
ENGINE_VARIABLE = "POPLAR_ENGINE_OPTIONS"
LOG_LEVEL_VARIABLE = "TENSORFLOW_IPU_LOG_LEVEL"
VLOG_VARIABLE = "TF_POPLAR_VLOG_LEVEL"
PROGRESS_VARIABLE = "TENSORFLOW_IPU_PROGRESS"

TRACEBACKS_VARIABLE = "TENSORFLOW_IPU_FULL_TRACEBACKS"
TRUST_VARIABLE = "TENSORFLOW_IPU_TRUST_EXECUTABLES"

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERR", "OFF")

DEFAULT_DEVICES = 8
DEFAULT_COUNT = 64

# No machine had more, and a replica is a thread.
MOST_IPUS = 65536
# TensorFlow makes each device anew for each session.
_MOST = {DEVICES_VARIABLE: 1024, COUNT_VARIABLE: MOST_IPUS}

_AUTO_REPORT = "autoReport."
_EXAMPLE = '{"autoReport.all":"true","autoReport.directory":"reports"}'
# Any of these asks for a report; the others say what is in one, and a prediction has what it has.
_REPORTING = ("all", "outputGraphProfile", "outputExecutionProfile")
_OUTPUTS = ("outputArchive", "outputDebugInfo", "outputLoweredVars", "outputSerializedGraph")
_OTHER_REPORT_OPTIONS = frozenset({"directory", "executionProfileProgramRunCount", "streamAtEachRun", *_OUTPUTS})
_SYNTHETIC_CATEGORIES = frozenset({"seed", "infeed", "outfeed", "hostembedding", "parameters"})


@dataclass(frozen=True)
class PoplarFlags:
    """What `TF_POPLAR_FLAGS` says."""

    use_ipu_model: bool = False
    use_synthetic_data: bool = False
    synthetic_data_categories: frozenset[str] = frozenset()
    executable_cache_path: str = ""
    show_progress_bar: bool | None = None
    others: tuple[str, ...] = ()

    def synthetic(self, category: str) -> bool:
        """Returns True if data of `category` (for instance `"infeed"`, in any case) is synthetic."""
        return self.use_synthetic_data or category.lower() in self.synthetic_data_categories


@functools.lru_cache(maxsize=1)
def registered_devices() -> int:
    """Returns the number of `/device:IPU:n` by `TENSORFLOW_IPU_DEVICES`, read once, as by the kernels."""
    return positive_int(DEVICES_VARIABLE, DEFAULT_DEVICES, _MOST[DEVICES_VARIABLE], None)


def ipu_count(environ: Mapping[str, str] | None = None) -> int:
    """Returns how many emulated IPUs the system offers now (`TENSORFLOW_IPU_COUNT`)."""
    return positive_int(COUNT_VARIABLE, DEFAULT_COUNT, _MOST[COUNT_VARIABLE], environ)


def way_out(variable: str, wanted: int) -> str:
    """What to do about a number that is above what `variable` says, for the end of an error message."""
    if wanted > _MOST[variable]:
        return f"choose less: `{variable}` goes up to {_MOST[variable]}"
    return f"start the program with the environment variable `{variable}={wanted}` or more"


def host_kernels(environ: Mapping[str, str] | None = None) -> bool:
    """Whether kernels of the host may compute layers of programs (`TENSORFLOW_IPU_HOST_KERNELS`); yes where unset."""
    return switch(HOST_KERNELS_VARIABLE, True, environ)


def emulations(environ: Mapping[str, str] | None = None) -> str | None:
    """The Python file that says what stands in for operations for tiles (`TENSORFLOW_IPU_EMULATIONS`), or None."""
    path = text_of(EMULATIONS_VARIABLE, environ)
    if path and not os.path.isfile(path):
        raise ValueError(f"`{EMULATIONS_VARIABLE}={path}` names no Python file; set it to the path of one, or unset it")
    return path or None


def full_tracebacks(environ: Mapping[str, str] | None = None) -> bool:
    """Returns True if tracebacks show more than the user's lines (`TENSORFLOW_IPU_FULL_TRACEBACKS`); no where unset."""
    return switch(TRACEBACKS_VARIABLE, False, environ)


def log_level(environ: Mapping[str, str] | None = None) -> str | None:
    """The level that `TENSORFLOW_IPU_LOG_LEVEL` names or `TF_POPLAR_VLOG_LEVEL` numbers; None where neither is set."""
    text = text_of(LOG_LEVEL_VARIABLE, environ)
    if text:
        if text.upper() in LOG_LEVELS:
            return text.upper()
        raise ValueError(
            f"`{LOG_LEVEL_VARIABLE}={text}` is no level; set it to one of {', '.join(f'`{one}`' for one in LOG_LEVELS)}, or"
            " unset it"
        )
    text = text_of(VLOG_VARIABLE, environ)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"`{VLOG_VARIABLE}={text}` is no level; set it to a whole number from 0 to 3, or unset it")
    return ("WARN", "INFO", "DEBUG", "TRACE")[min(int(text[:9]), 3)]


def poplar_flags(environ: Mapping[str, str] | None = None) -> PoplarFlags:
    """Parses `TF_POPLAR_FLAGS` as it stands now."""
    text = text_of(FLAGS_VARIABLE, environ)
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise ValueError(f"`{FLAGS_VARIABLE}={text}` has unbalanced quotes; close each quotation mark") from exc
    ipu_model = synthetic = False
    cache = ""
    progress_bar: bool | None = None
    categories: set[str] = set()
    others: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        if name == "--use_ipu_model":
            ipu_model = _switch(word, value)
        elif name == "--use_synthetic_data":
            synthetic = _switch(word, value)
        elif name == "--synthetic_data_categories":
            categories.update(_categories(word, value))
        elif name == "--executable_cache_path":
            if not value:
                raise ValueError(f"`{word}` in `{FLAGS_VARIABLE}` names no folder; write `{name}=FOLDER`")
            cache = value
        elif name == "--show_progress_bar":
            progress_bar = None if value.lower() == "auto" else _switch(word, value)
        else:
            others.append(word)
    return PoplarFlags(ipu_model, synthetic, frozenset(categories), cache, progress_bar, tuple(others))


def trusts_executables(environ: Mapping[str, str] | None = None) -> bool:
    """Whether executables that other users stored in the cache are loaded (`TENSORFLOW_IPU_TRUST_EXECUTABLES`)."""
    return switch(TRUST_VARIABLE, False, environ)


def progress(environ: Mapping[str, str] | None = None) -> bool | None:
    """Whether long work says how far it is (`TENSORFLOW_IPU_PROGRESS`, else `TF_POPLAR_FLAGS`); None: where people look."""
    if text_of(PROGRESS_VARIABLE, environ):
        return switch(PROGRESS_VARIABLE, True, environ)
    return poplar_flags(environ).show_progress_bar


def report_directory(environ: Mapping[str, str] | None = None) -> str | None:
    """The folder in which `POPLAR_ENGINE_OPTIONS` wants a report of each program that is compiled; None for no reports."""
    text = text_of(ENGINE_VARIABLE, environ)
    if not text:
        return None
    options = json_object(ENGINE_VARIABLE, text, _EXAMPLE)
    asked = {name.removeprefix(_AUTO_REPORT): value for name, value in options.items() if name.startswith(_AUTO_REPORT)}
    unknown = sorted(set(asked) - _OTHER_REPORT_OPTIONS - set(_REPORTING))
    if unknown:
        known = ", ".join(f"`{_AUTO_REPORT}{name}`" for name in sorted({*_OTHER_REPORT_OPTIONS, *_REPORTING}))
        raise ValueError(f"`{_AUTO_REPORT}{unknown[0]}` in `{ENGINE_VARIABLE}` is not known; there are {known}")
    wanted = [_truth(name, asked[name]) for name in _REPORTING if name in asked]
    directory = asked.get("directory", ".")
    if not isinstance(directory, str) or not directory:
        raise ValueError(f"`{_AUTO_REPORT}directory` in `{ENGINE_VARIABLE}` must be a folder, but is {directory!r}")
    return directory if any(wanted) else None


def _truth(name: str, value: object) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(f'`{_AUTO_REPORT}{name}` in `{ENGINE_VARIABLE}` must be "true" or "false", but is {value!r}')
    return text == "true"


def _switch(word: str, value: str) -> bool:
    if value.lower() in TRUE | {""}:
        return True
    if value.lower() in FALSE:
        return False
    raise ValueError(f"`{word}` in `{FLAGS_VARIABLE}` is neither on nor off; write `true`, `false` or no value")


def _categories(word: str, value: str) -> set[str]:
    # Poplar's flag and the enum disagree on the spelling of HostEmbedding, so underscores do not count.
    names = {name.strip().lower().replace("_", "") for name in value.split(",")} - {""}
    unknown = sorted(names - _SYNTHETIC_CATEGORIES)
    if unknown or not names:
        raise ValueError(
            f"`{word}` in `{FLAGS_VARIABLE}` names {', '.join(f'`{name}`' for name in unknown) or 'no category'};"
            f" write a comma-separated list of {', '.join(sorted(_SYNTHETIC_CATEGORIES))}"
        )
    return names


TF_CONFIG_VARIABLE = "TF_CONFIG"
TIMEOUT_VARIABLE = "TENSORFLOW_IPU_TIMEOUT"
REPLICAS_VARIABLE = "TENSORFLOW_IPU_REPLICAS"
IPUS_PER_REPLICA_VARIABLE = "TENSORFLOW_IPU_IPUS_PER_REPLICA"

DEFAULT_TIMEOUT = 60.0

# A day: what is above was meant in another unit.
MOST_SECONDS = 86400


def tf_config(environ: Mapping[str, str] | None = None) -> str | None:
    """What `TF_CONFIG` says of the cluster that this process is a task of; None where it is unset or empty."""
    return text_of(TF_CONFIG_VARIABLE, environ) or None


def worker_timeout(environ: Mapping[str, str] | None = None) -> float:
    """Returns how many seconds workers wait for each other (`TENSORFLOW_IPU_TIMEOUT`); 60 where unset."""
    text = text_of(TIMEOUT_VARIABLE, environ)
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(
            f"`{TIMEOUT_VARIABLE}={text}` is no number of seconds above 0 and up to {MOST_SECONDS}; set it to one, or"
            f" unset it for {DEFAULT_TIMEOUT:g}"
        )
    return seconds


def local_replicas(environ: Mapping[str, str] | None = None) -> int | None:
    """Returns how many replicas each worker has (`TENSORFLOW_IPU_REPLICAS`); None where that is left to programs."""
    return positive_int(REPLICAS_VARIABLE, 0, MOST_IPUS, environ) or None


def ipus_per_replica(environ: Mapping[str, str] | None = None) -> int | None:
    """How many IPUs each replica has (`TENSORFLOW_IPU_IPUS_PER_REPLICA`); None where that is left to programs."""
    return positive_int(IPUS_PER_REPLICA_VARIABLE, 0, MOST_IPUS, environ) or None


def default_ipus(environ: Mapping[str, str] | None = None) -> int:
    """Returns how many IPUs the device has that there is where programs select none: as many as its replicas need."""
    replicas, each = local_replicas(environ), ipus_per_replica(environ)
    wanted = (replicas or 1) * (each or 1)
    if wanted > ipu_count(environ):
        raise ValueError(
            f"`{REPLICAS_VARIABLE}` and `{IPUS_PER_REPLICA_VARIABLE}` say {replicas or 1} replicas of {each or 1} IPUs, and"
            f" there are {ipu_count(environ)} IPUs: {way_out(COUNT_VARIABLE, wanted)}"
        )
    return wanted


ROOT = "tensorflow_ipu"
# Below `logging.DEBUG`: what happens at each run.
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
    """Has the package's loggers write to stderr at the level of the environment; else Python's defaults hold."""
    logging.addLevelName(TRACE, "TRACE")
    level = log_level(environ)
    if level is None:
        return
    logger = logging.getLogger(ROOT)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[level])
    logger.propagate = False  # The program's own handlers would write it once more.
