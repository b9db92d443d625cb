"""Draws `report.png` of `machine.md`: a screenshot of the page of a pipeline's report. Stores it beside this file."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
from PIL import Image

import tensorflow_ipu as ipu

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZE = 1180, 2840
COLOURS = 192  # Few colours are enough for flat areas, and make the file four times smaller.


def make_report() -> ipu.machine.Report:
    """Returns the report on a model of twelve layers in four stages."""
    config = ipu.IPUConfig()
    config.auto_select_ipus = 4
    config.configure_ipu_system()
    with ipu.IPUStrategy().scope():
        layers = [keras.layers.Dense(2048, "gelu") for _ in range(11)]
        model = keras.Sequential([keras.Input([784]), *layers, keras.layers.Dense(10)], name="digits")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, steps_per_execution=32)
    model.set_pipeline_stage_assignment([number // 3 for number in range(12)])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=32)
    return model.ipu_report(256, machine="Bow Pod16")


def main() -> int:
    """Saves the page of the report, takes its screenshot in a browser, and returns the exit status."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        print(f"no browser: install one of {', '.join(BROWSERS)}", file=sys.stderr)  # noqa: T201
        return 1
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        make_report().save(page)
        width, height = SIZE
        words = [browser, "--headless=new", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        words += [f"--window-size={width},{height}", f"--screenshot={HERE / 'report.png'}", page.as_uri()]
        subprocess.run(words, check=True, capture_output=True, timeout=120)
    with Image.open(HERE / "report.png") as picture:
        small = picture.convert("RGB").quantize(COLOURS)
    small.save(HERE / "report.png", optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
