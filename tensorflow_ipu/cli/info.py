"""The command `info`: shows the devices, versions, processor, caches and variables that programs use here."""

from __future__ import annotations

import argparse
import difflib
import getpass
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import tensorflow_ipu
from tensorflow_ipu._base import environment
from tensorflow_ipu._base.units import format_bytes
from tensorflow_ipu.cli.parsers import add_json, make_parser, show, show_json
from tensorflow_ipu.config._checks import multi_ipu


def parser() -> argparse.ArgumentParser:
    command_parser = make_parser(
        "info",
        "Shows the environment of programs: devices and IPUs, the machine for which reports predict, versions, the processor,"
        " the executable cache, and the effect of each environment variable. Does not start TensorFlow.",
        "0",
    )
    report_help = "print Markdown for an issue, without names of users and hosts and without values that may be secret"
    command_parser.add_argument("--report", action="store_true", help=report_help)
    add_json(command_parser)
    return command_parser


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    sections = everything(private=options.report)
    if options.json:
        show_json(json.loads(anonymous(json.dumps(sections))) if options.report else sections)
    elif options.report:
        versions = sections["versions"]
        title = ", ".join(f"{name} {versions[name]}" for name in ("tensorflow_ipu", "tensorflow", "python"))
        show(anonymous(f"<details><summary>{title}</summary>\n\n```text\n{text_of(sections)}\n```\n</details>"))
    else:
        show(text_of(sections))
    return 0


def everything(private: bool = False) -> dict[str, dict[str, object]]:
    """Returns the values of each section by title; `private` hides the values of variables that may hold secrets."""
    return {
        "versions": _versions(),
        "library": _library(),
        "devices": _devices(),
        "machine of reports, unless a program names another": _machine(),
        "host": _host(),
        "executable cache": _cache(),
        "environment": _variables(private),
    }


def text_of(sections: Mapping[str, Mapping[str, object]]) -> str:
    """Returns the text of the sections, a line for each value."""
    lines = list[str]()
    for title, values in sections.items():
        lines += ["", title, *([f"  {_text(name, value)}" for name, value in values.items()] or ["  none"])]
    return "\n".join(lines[1:])


def _text(name: str, value: object) -> str:
    if isinstance(value, dict):
        return f"{name}={value['value']}: {value['effect']}"
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{name.removesuffix('_bytes')}: {format_bytes(value)}"
    return f"{name}: {' '.join(map(str, value)) if isinstance(value, list) else value}"


def anonymous(text: str) -> str:
    """Returns `text` with `~` for the home folder, `USER` for the user's name and `HOST` for this host's name."""
    home = os.path.expanduser("~")
    text = text.replace(home, "~") if len(home) > 1 else text
    with suppress(OSError, KeyError, ImportError):  # A container may have no user with this process's user id.
        text = re.sub(rf"(?<=/){re.escape(getpass.getuser())}(?![\w.-])", "USER", text)
    return re.sub(rf"(?<![\w.-]){re.escape(platform.node())}(?![\w.-])", "HOST", text) if platform.node() else text


def version_of(*names: str) -> str:
    """Returns the version of the first of these distributions that is installed."""
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
            return version if name == names[0] else f"{version} ({name})"
    return "not installed"


def _versions() -> dict[str, object]:
    return {
        "tensorflow_ipu": version_of("tensorflow-ipu"),
        "tensorflow": version_of("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"),
        "keras": version_of("keras", "keras-nightly"),
        "tf_keras": version_of("tf_keras", "tf_keras-nightly"),
        "tf.keras is": f"Keras {2 if environment.uses_keras_2() else 3}",
        "numpy": version_of("numpy"),
        "python": platform.python_version(),
        "glibc": platform.libc_ver()[1],
    }


def _library() -> dict[str, object]:
    folder = Path(tensorflow_ipu.__file__).parent / "kernels"
    library = folder / "libtensorflow_ipu.so"
    try:
        built = json.loads((folder / "build_info.json").read_text())
        content = library.read_bytes()
    except (OSError, ValueError) as exc:
        return {"file": str(library), "state": f"cannot be read: {exc}"}
    state = "as it was built"
    if hashlib.sha256(content).hexdigest() != built.pop("sha256", ""):
        state = "not the one that was built: install the package again"
    elif re.findall(r"\d+", built.get("tensorflow", "")) != re.findall(r"\d+", str(_versions()["tensorflow"])):
        state = "built for another TensorFlow than the installed one"
    return {
        "file": str(library),
        "size_bytes": len(content),
        **{f"built {'by' if name == 'compiler' else 'for'} {name}": version for name, version in built.items()},
        "state": state,
    }


def _devices() -> dict[str, object]:
    try:
        devices, ipus, first = environment.registered_devices(), environment.ipu_count(), environment.default_ipus()
    except ValueError as exc:
        return {"wrong": str(exc)}
    rows, index = list[str](), 0
    while group := multi_ipu(index, ipus):
        last = index + ipus // len(group) - 1
        rows.append(f"{index}{f' to {last}' if last > index else ''}: {len(group)}")
        index = last + 1
    return {
        "IPUs": ipus,
        "devices that can be": f"/device:IPU:0 to /device:IPU:{devices - 1}",
        "device without a configuration": f"/device:IPU:0, IPUs: {first}",
        "ids of `select_ipus`, and the IPUs of each": "; ".join(rows),
    }


def _machine() -> dict[str, object]:
    try:
        from tensorflow_ipu.machine import GC200, system_of
    except ImportError as exc:  # `info` must work in a broken installation.
        return {"wrong": str(exc)}
    system = system_of(GC200)
    return {
        "name": system.name,
        "tiles": system.machine.tiles,
        "memory of a tile_bytes": system.machine.tile_bytes,
        "memory of an IPU_bytes": system.machine.bytes,
        "clock": f"{system.machine.clock_hz / 1e9:g} GHz",
    }


# The processor features for which XLA or the host kernels generate other code.
_FEATURES = "avx avx2 avx512_bf16 avx512_fp16 avx512_vnni avx512bw avx512dq avx512f avx_vnni amx_bf16 amx_int8 f16c fma"
_FEATURES += " sse4_2 asimd asimdhp bf16 i8mm sve sve2"


def _host() -> dict[str, object]:
    lines = list[str]()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    properties = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = (properties.get("flags") or properties.get("Features") or "").split()
    return {
        "processor": properties.get("model name") or platform.processor() or platform.machine(),
        "processors": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "features": sorted(set(flags).intersection(_FEATURES.split())),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
    }


def _cache() -> dict[str, object]:
    try:
        folder = environment.poplar_flags().executable_cache_path
    except ValueError as exc:
        return {"wrong": str(exc)}
    if not folder:
        return {"folder": "none, unless a program sets `executables.set_cache` or `serialization_output_folder`"}
    path = Path(os.path.abspath(os.path.expanduser(folder)))
    sizes = list[int]()
    for file in path.glob("*.ipu_executable"):
        with suppress(OSError):  # Another process may have removed the file.
            sizes.append(file.lstat().st_size)
    return {"folder": str(path), "files": len(sizes), "size_bytes": sum(sizes)}


def _flags_effect() -> str:
    return _with_ignored("used", environment.poplar_flags().others)


def _engine_effect() -> str:
    folder = environment.report_directory()
    text = environment.text_of(environment.ENGINE_VARIABLE, None) or "{}"
    ignored = [name for name in json.loads(text) if not name.startswith("autoReport.")]
    return _with_ignored(f"writes a report of each program to `{folder}`" if folder else "no reports", ignored)


def _with_ignored(effect: str, options: Sequence[str]) -> str:
    return f"{effect}; ignored: `{'`, `'.join(options)}`" if options else effect


def _cluster_effect() -> str:
    cluster = environment.json_object(environment.TF_CONFIG_VARIABLE, environment.tf_config() or "{}", "{}")
    task = cluster.get("task", {})
    counts = ", ".join(f"{len(hosts)} of `{kind}`" for kind, hosts in cluster.get("cluster", {}).items())
    return f"this process is `{task.get('type')}` {task.get('index')} of a cluster of {counts}"


# (effect, function) of each variable. The function raises an error if the variable has an invalid value. If the effect is
# empty, the function returns the effect.
ACTING: dict[str, tuple[str, Callable[[], object]]] = {
    environment.DEVICES_VARIABLE: ("number of IPU devices", environment.registered_devices),
    environment.COUNT_VARIABLE: ("number of IPUs of the machine", environment.ipu_count),
    environment.HOST_KERNELS_VARIABLE: ("whether programs use host kernels", environment.host_kernels),
    environment.EMULATIONS_VARIABLE: ("file with emulations of operations for tiles", environment.emulations),
    environment.LOG_LEVEL_VARIABLE: ("log level", environment.log_level),
    environment.PROGRESS_VARIABLE: ("whether long operations report progress", environment.progress),
    environment.TRACEBACKS_VARIABLE: ("whether tracebacks show all frames", environment.full_tracebacks),
    environment.TRUST_VARIABLE: ("whether executables of other users are loaded", environment.trusts_executables),
    environment.VLOG_VARIABLE: (f"log level, unless {environment.LOG_LEVEL_VARIABLE} is set", environment.log_level),
    environment.TIMEOUT_VARIABLE: ("seconds for which workers wait for each other", environment.worker_timeout),
    environment.REPLICAS_VARIABLE: ("number of replicas of each worker", environment.local_replicas),
    environment.IPUS_PER_REPLICA_VARIABLE: ("number of IPUs of each replica", environment.ipus_per_replica),
    environment.FLAGS_VARIABLE: ("", _flags_effect),
    environment.ENGINE_VARIABLE: ("", _engine_effect),
    environment.KERAS_VARIABLE: ("which Keras `tf.keras` is", environment.uses_keras_2),
    environment.TF_CONFIG_VARIABLE: ("", _cluster_effect),
}
# Variables that TensorFlow reads and this package does not.
_OF_TENSORFLOW = ("KERAS_BACKEND", "OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "TF_DETERMINISTIC_OPS", "TF_XLA_FLAGS")
_OF_TENSORFLOW += ("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "XLA_FLAGS")
# Prefixes of the variables of the SDK, and of misspelled variables of this package.
_OF_SDK = ("GCDA_", "GCL_", "IPUOF_", "POPART_", "POPLAR_", "POPLIBS_", "POPTORCH_", "PVTI_", "TENSORFLOW_IPU_")
_OF_SDK += ("TF_POPLAR_",)


def _variables(private: bool) -> dict[str, object]:
    variables = dict[str, object]()
    for name, value in sorted(os.environ.items()):
        is_known = name in ACTING or name in _OF_TENSORFLOW
        if is_known or name.startswith(_OF_SDK):
            hides = private and (not is_known or name == environment.TF_CONFIG_VARIABLE)
            variables[name] = {"value": "(set)" if hides else value, "effect": _effect(name)}
    return variables


def _effect(name: str) -> str:
    if name in _OF_TENSORFLOW:
        return "read by TensorFlow"
    if name not in ACTING:
        near = difflib.get_close_matches(name, ACTING, n=1, cutoff=0.8)
        return f"nothing reads it; did you mean `{near[0]}`?" if near else "nothing reads it"
    effect, check = ACTING[name]
    try:
        value = check()
        return effect or str(value)
    except (ValueError, AttributeError, TypeError) as exc:
        return f"wrong: {exc}"
