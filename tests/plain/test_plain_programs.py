"""The package does not change plain TensorFlow: a process with the package gives the same results as one without."""

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow.patches import TABLE, Hook, Lifetime

SCRIPT = Path(__file__).with_name("programs.py")


def _reports(forking: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the reports of the two processes, which run at the same time."""
    kinds = ("plain", "beside")
    logs = [folder / f"{kind}.txt" for kind in kinds]
    started = [
        forking.start(SCRIPT, kind, str(folder / f"{kind}.json"), folder=folder, output=log)
        for kind, log in zip(kinds, logs, strict=True)
    ]
    codes = [forking.end(process) for process in started]
    assert codes == [0, 0], "\n".join(log.read_text(errors="replace") for log in logs)
    without, with_package = (json.loads((folder / f"{kind}.json").read_text()) for kind in kinds)
    return without, with_package


def test_plain_tensorflow_is_what_it_is_without_the_package(forking, tmp_path):
    without, with_package = _reports(forking, tmp_path)

    compiled = [name for name, text in without["programs"].items() if text.startswith("HloModule")]
    operations = {word for name in compiled for word in name.split() if hasattr(tf.raw_ops, word)}
    assert len(operations) >= 250
    assert len([name for name in compiled if name.startswith("step of")]) == 10
    assert {"gradient of a loop", "text in an assertion", "StatelessWhile"} <= set(compiled)

    assert list(with_package["programs"]) == list(without["programs"])
    for part in ("programs", "results", "state"):
        differences = {
            name: (with_package[part][name], value)
            for name, value in without[part].items()
            if with_package[part][name] != value
        }
        assert differences == {}, part

    allowed = {place for patch in TABLE if patch.lasts is Lifetime.IMPORT for place in patch.places}
    # Hooks stay in their lists without an effect. Their functions also have other names.
    allowed |= {place for patch in TABLE if isinstance(patch, Hook) for place in patch.places}
    names = {place.rpartition(":")[2].rpartition(".")[2] for place in allowed}
    assert [
        entry for entry in with_package["replaced"] if entry.rpartition(":")[2].rpartition(".")[2] not in names
    ] == []
