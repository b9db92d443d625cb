"""The command `info`, which shows what programs find here: devices, versions, the processor, caches, variables."""

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
    made = make_parser(
        "info",
        "Shows what programs find here: the devices and IPUs, the machine that reports predict, versions, the processor,"
        " caches, and which variables of the environment act. TensorFlow is not started.",
        "0",
    )
    words = "for an issue: as Markdown, without names of users and hosts and without values that may be secrets"
    made.add_argument("--report", action="store_true", help=words)
    add_json(made)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    found = everything(private=options.report)
    if options.json:
        show_json(json.loads(anonymous(json.dumps(found))) if options.report else found)
    elif options.report:
        versions = found["versions"]
        title = ", ".join(f"{name} {versions[name]}" for name in ("tensorflow_ipu", "tensorflow", "python"))
        show(anonymous(f"<details><summary>{title}</summary>\n\n```text\n{text_of(found)}\n```\n</details>"))
    else:
        show(text_of(found))
    return 0


def everything(private: bool = False) -> dict[str, dict[str, object]]:
    """All that is shown, by section; with `private`, without values of variables that may hold secrets."""
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
    """The sections as text."""
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
    """A text with a short home folder, and without the names of the user and of this host."""
    home = os.path.expanduser("~")
    text = text.replace(home, "~") if len(home) > 1 else text
    with suppress(OSError, KeyError, ImportError):  # A container may have no user of this number.
        text = re.sub(rf"(?<=/){re.escape(getpass.getuser())}(?![\w.-])", "USER", text)
    return re.sub(rf"(?<![\w.-]){re.escape(platform.node())}(?![\w.-])", "HOST", text) if platform.node() else text


def version_of(*names: str) -> str:
    """The version of the first of some distributions that is installed."""
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
        state = "for another TensorFlow than is installed"
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
    except ImportError as exc:  # Here is where a broken installation is looked into.
        return {"wrong": str(exc)}
    system = system_of(GC200)
    return {
        "name": system.name,
        "tiles": system.machine.tiles,
        "memory of a tile_bytes": system.machine.tile_bytes,
        "memory of an IPU_bytes": system.machine.bytes,
        "clock": f"{system.machine.clock_hz / 1e9:g} GHz",
    }


# What XLA and the host's kernels make a difference of.
_FEATURES = "avx avx2 avx512_bf16 avx512_fp16 avx512_vnni avx512bw avx512dq avx512f avx_vnni amx_bf16 amx_int8 f16c fma"
_FEATURES += " sse4_2 asimd asimdhp bf16 i8mm sve sve2"


def _host() -> dict[str, object]:
    lines = list[str]()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = (told.get("flags") or told.get("Features") or "").split()
    return {
        "processor": told.get("model name") or platform.processor() or platform.machine(),
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
        with suppress(OSError):  # Another process may have removed it meanwhile.
            sizes.append(file.lstat().st_size)
    return {"folder": str(path), "files": len(sizes), "size_bytes": sum(sizes)}


def _of_flags() -> str:
    return _with_idle("acts", environment.poplar_flags().others)


def _of_engine() -> str:
    folder = environment.report_directory()
    text = environment.text_of(environment.ENGINE_VARIABLE, None) or "{}"
    idle = [name for name in json.loads(text) if not name.startswith("autoReport.")]
    return _with_idle(f"a report of each program in `{folder}`" if folder else "no reports", idle)


def _with_idle(effect: str, idle: Sequence[str]) -> str:
    return f"{effect}; without an effect: `{'`, `'.join(idle)}`" if idle else effect


def _of_cluster() -> str:
    told = environment.json_object(environment.TF_CONFIG_VARIABLE, environment.tf_config() or "{}", "{}")
    task = told.get("task", {})
    counts = ", ".join(f"{len(hosts)} of `{kind}`" for kind, hosts in told.get("cluster", {}).items())
    return f"this process is `{task.get('type')}` {task.get('index')} of a cluster of {counts}"


# What each variable does, and what checks its value or says more.
ACTING: dict[str, tuple[str, Callable[[], object]]] = {
    environment.DEVICES_VARIABLE: ("devices that can be", environment.registered_devices),
    environment.COUNT_VARIABLE: ("IPUs of the machine", environment.ipu_count),
    environment.HOST_KERNELS_VARIABLE: ("whether kernels of the host compute layers", environment.host_kernels),
    environment.EMULATIONS_VARIABLE: ("emulations of operations for tiles", environment.emulations),
    environment.LOG_LEVEL_VARIABLE: ("how much is logged", environment.log_level),
    environment.PROGRESS_VARIABLE: ("whether long work says how far it is", environment.progress),
    environment.TRACEBACKS_VARIABLE: ("whether tracebacks show all frames", environment.full_tracebacks),
    environment.TRUST_VARIABLE: ("whether executables of other users are loaded", environment.trusts_executables),
    environment.VLOG_VARIABLE: (f"how much is logged, without {environment.LOG_LEVEL_VARIABLE}", environment.log_level),
    environment.TIMEOUT_VARIABLE: ("seconds that workers wait for each other", environment.worker_timeout),
    environment.REPLICAS_VARIABLE: ("replicas of each worker", environment.local_replicas),
    environment.IPUS_PER_REPLICA_VARIABLE: ("IPUs of each replica", environment.ipus_per_replica),
    environment.FLAGS_VARIABLE: ("", _of_flags),
    environment.ENGINE_VARIABLE: ("", _of_engine),
    environment.KERAS_VARIABLE: ("which Keras `tf.keras` is", environment.uses_keras_2),
    environment.TF_CONFIG_VARIABLE: ("", _of_cluster),
}
# What TensorFlow reads, and it alone.
_OF_TENSORFLOW = ("KERAS_BACKEND", "OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "TF_DETERMINISTIC_OPS", "TF_XLA_FLAGS")
_OF_TENSORFLOW += ("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "XLA_FLAGS")
# The variables of the SDK, and what looks like ours.
_OF_SDK = ("GCDA_", "GCL_", "IPUOF_", "POPART_", "POPLAR_", "POPLIBS_", "POPTORCH_", "PVTI_", "TENSORFLOW_IPU_")
_OF_SDK += ("TF_POPLAR_",)


def _variables(private: bool) -> dict[str, object]:
    found = dict[str, object]()
    for name, value in sorted(os.environ.items()):
        is_known = name in ACTING or name in _OF_TENSORFLOW
        if is_known or name.startswith(_OF_SDK):
            hides = private and (not is_known or name == environment.TF_CONFIG_VARIABLE)
            found[name] = {"value": "(set)" if hides else value, "effect": _effect(name)}
    return found


def _effect(name: str) -> str:
    if name in _OF_TENSORFLOW:
        return "read by TensorFlow"
    if name not in ACTING:
        near = difflib.get_close_matches(name, ACTING, n=1, cutoff=0.8)
        return f"nothing reads it; did you mean `{near[0]}`?" if near else "nothing reads it"
    words, check = ACTING[name]
    try:
        told = check()
        return words or str(told)
    except (ValueError, AttributeError, TypeError) as exc:
        return f"wrong: {exc}"
