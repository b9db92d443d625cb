"""Writes reports on models of published results, as text, as pages and as JSON."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import models
from predictions import Settings, Trained

# The encoder of BERT-Large is on eight IPUs, with three layers each. Its other settings are from
# nlp/bert/popart/configs/pretrain_large_128.json. ResNet-50 is the same as in `run.py`.
_MODELS: dict[str, Callable[[], Trained]] = {
    "resnet50": lambda: Trained(lambda: models.resnet50(20), Settings(1, 20, [0.15] * 7, sequential=True), 6),
    "bert-large": lambda: Trained(
        lambda: models.bert([3] * 8, 1024, 16, 128, 20, 8),
        Settings(8, 8, [0.15, *[0.25] * 7, 0.15], offloaded=True, adaptive=True),
        504,  # The published 510 micro-batches, rounded to a number that nine stages support.
    ),
}


def main() -> None:
    """Writes the reports that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(_MODELS), help=f"{', '.join(_MODELS)}; all if omitted")
    parser.add_argument("--directory", type=Path, default=Path("reports"))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    keras.config.set_dtype_policy("float16")
    for name in options.models:
        report = _MODELS[name]().report
        print(report)
        for suffix in ("json", "html"):
            report.save(options.directory / f"{name}.{suffix}")


if __name__ == "__main__":
    main()
