"""What environment variables say of the system, typed; `_worker_environment.py` has those of workers."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from tensorflow_ipu import _variables

DEVICES_VARIABLE = "TENSORFLOW_IPU_DEVICES"
COUNT_VARIABLE = "TENSORFLOW_IPU_COUNT"
FLAGS_VARIABLE = "TF_POPLAR_FLAGS"
HOST_KERNELS_VARIABLE = "TENSORFLOW_IPU_HOST_KERNELS"
ENGINE_VARIABLE = "POPLAR_ENGINE_OPTIONS"
LOG_LEVEL_VARIABLE = "TENSORFLOW_IPU_LOG_LEVEL"
VLOG_VARIABLE = "TF_POPLAR_VLOG_LEVEL"

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
_OTHER_REPORT_OPTIONS = frozenset(
    {
        "directory",
        "executionProfileProgramRunCount",
        "outputArchive",
        "outputDebugInfo",
        "outputLoweredVars",
        "outputSerializedGraph",
        "streamAtEachRun",
    }
)
_SYNTHETIC_CATEGORIES = frozenset({"seed", "infeed", "outfeed", "hostembedding", "parameters"})


@dataclass(frozen=True)
class PoplarFlags:
    """What `TF_POPLAR_FLAGS` says.

    Attributes:
      use_ipu_model: Whether the program asks for the IPU Model instead of hardware.
      use_synthetic_data: Whether no data at all passes between host and device.
      synthetic_data_categories: Lower-case names of the kinds of data that do not pass between host and device.
      executable_cache_path: The folder in which executables are kept; empty for none.
      others: The remaining flags as they were written; they are recorded and change nothing.
    """

    use_ipu_model: bool = False
    use_synthetic_data: bool = False
    synthetic_data_categories: frozenset[str] = frozenset()
    executable_cache_path: str = ""
    others: tuple[str, ...] = ()

    def synthetic(self, category: str) -> bool:
        """Whether data of `category` (for instance `"infeed"`, in any case) is synthetic."""
        return self.use_synthetic_data or category.lower() in self.synthetic_data_categories


@functools.lru_cache(maxsize=1)
def registered_devices() -> int:
    """How many `/device:IPU:n` exist for TensorFlow, as `TENSORFLOW_IPU_DEVICES` said when this was first called.

    The kernels read it once too, when they are loaded: a later change of the variable has no effect.
    """
    return _variables.positive_int(DEVICES_VARIABLE, DEFAULT_DEVICES, _MOST[DEVICES_VARIABLE], None)


def ipu_count(environ: Mapping[str, str] | None = None) -> int:
    """How many emulated IPUs the system offers now (`TENSORFLOW_IPU_COUNT`)."""
    return _variables.positive_int(COUNT_VARIABLE, DEFAULT_COUNT, _MOST[COUNT_VARIABLE], environ)


def way_out(variable: str, wanted: int) -> str:
    """What to do about a number that is above what `variable` says, for the end of an error message."""
    if wanted > _MOST[variable]:
        return f"choose less: `{variable}` goes up to {_MOST[variable]}"
    return f"start the program with the environment variable `{variable}={wanted}` or more"


def host_kernels(environ: Mapping[str, str] | None = None) -> bool:
    """Whether kernels of the host may compute layers of programs (`TENSORFLOW_IPU_HOST_KERNELS`); yes where unset."""
    return _variables.switch(HOST_KERNELS_VARIABLE, True, environ)


def log_level(environ: Mapping[str, str] | None = None) -> str | None:
    """How much of the package's log goes to stderr: one of `LOG_LEVELS`; None where no variable says.

    `TENSORFLOW_IPU_LOG_LEVEL` says it by name. Where that is unset, `TF_POPLAR_VLOG_LEVEL` says it by number: 0 is `WARN`,
    1 `INFO`, 2 `DEBUG`, and what is above `TRACE`.
    """
    text = _variables.text_of(LOG_LEVEL_VARIABLE, environ)
    if text:
        if text.upper() in LOG_LEVELS:
            return text.upper()
        raise ValueError(
            f"`{LOG_LEVEL_VARIABLE}={text}` is no level; set it to one of {', '.join(f'`{one}`' for one in LOG_LEVELS)}, or"
            " unset it"
        )
    text = _variables.text_of(VLOG_VARIABLE, environ)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"`{VLOG_VARIABLE}={text}` is no level; set it to a whole number from 0 to 3, or unset it")
    return ("WARN", "INFO", "DEBUG", "TRACE")[min(int(text[:9]), 3)]


def poplar_flags(environ: Mapping[str, str] | None = None) -> PoplarFlags:
    """Parses `TF_POPLAR_FLAGS` as it stands now."""
    text = _variables.text_of(FLAGS_VARIABLE, environ)
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise ValueError(f"`{FLAGS_VARIABLE}={text}` has unbalanced quotes; close each quotation mark") from exc
    ipu_model = synthetic = False
    cache = ""
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
        else:
            others.append(word)
    return PoplarFlags(ipu_model, synthetic, frozenset(categories), cache, tuple(others))


def report_directory(environ: Mapping[str, str] | None = None) -> str | None:
    """The folder in which `POPLAR_ENGINE_OPTIONS` wants a report of each program that is compiled; None for no reports."""
    text = _variables.text_of(ENGINE_VARIABLE, environ)
    if not text:
        return None
    options = _variables.json_object(ENGINE_VARIABLE, text, _EXAMPLE)
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
    """A switch of `POPLAR_ENGINE_OPTIONS`, whose values are text."""
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(f'`{_AUTO_REPORT}{name}` in `{ENGINE_VARIABLE}` must be "true" or "false", but is {value!r}')
    return text == "true"


def _switch(word: str, value: str) -> bool:
    if value.lower() in _variables.TRUE | {""}:
        return True
    if value.lower() in _variables.FALSE:
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
