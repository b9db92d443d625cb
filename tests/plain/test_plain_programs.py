"""The package changes nothing of plain TensorFlow: two processes tell what it does, one of them beside the package."""

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow.patches import TABLE, Hook, Lifetime

SCRIPT = Path(__file__).with_name("programs.py")


def _told(forking: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the two processes tell, which run at once."""
    kinds = ("plain", "beside")
    logs = [folder / f"{kind}.txt" for kind in kinds]
    started = [
        forking.start(SCRIPT, kind, str(folder / f"{kind}.json"), folder=folder, output=log)
        for kind, log in zip(kinds, logs, strict=True)
    ]
    codes = [forking.end(process) for process in started]
    assert codes == [0, 0], "\n".join(log.read_text(errors="replace") for log in logs)
    plain, beside = (json.loads((folder / f"{kind}.json").read_text()) for kind in kinds)
    return plain, beside


def test_plain_tensorflow_is_what_it_is_without_the_package(forking, tmp_path):
    plain, beside = _told(forking, tmp_path)

    compiled = [name for name, text in plain["programs"].items() if text.startswith("HloModule")]
    operations = {word for name in compiled for word in name.split() if hasattr(tf.raw_ops, word)}
    assert len(operations) >= 250
    assert len([name for name in compiled if name.startswith("step of")]) == 10
    assert {"gradient of a loop", "text in an assertion", "StatelessWhile"} <= set(compiled)

    assert list(beside["programs"]) == list(plain["programs"])
    for part in ("programs", "results", "state"):
        others = {
            name: (beside[part][name], value) for name, value in plain[part].items() if beside[part][name] != value
        }
        assert others == {}, part

    allowed = {place for patch in TABLE if patch.lasts is Lifetime.IMPORT for place in patch.places}
    # Hooks stay in their lists, and do nothing. The same functions have other names too.
    allowed |= {place for patch in TABLE if isinstance(patch, Hook) for place in patch.places}
    names = {place.rpartition(":")[2].rpartition(".")[2] for place in allowed}
    assert [one for one in beside["replaced"] if one.rpartition(":")[2].rpartition(".")[2] not in names] == []
