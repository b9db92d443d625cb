"""Counts the files and the calls between files that a run takes through the package: `make trips`.

A trip is one run, `fit` or pipeline. A move is a call from one file of the package into another, even if frames of TensorFlow
or Keras are between them. Only the main thread is counted. For each trip, the script also prints the subpackages with the most
moves into them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining

ROOT = Path(ipu.__file__).parent
SHOWN_ROOMS = 4


def main() -> None:
    """Prints the files and the moves of each trip."""
    print(f"{'trip':16} files  moves  moves into rooms")
    for name, call in trips():
        entered = moves_of(call)
        rooms = Counter[str]()
        for file, moves in entered.items():
            rooms[Path(file).relative_to(ROOT).parts[0]] += moves
        busiest = ", ".join(f"{room} {moves}" for room, moves in rooms.most_common(SHOWN_ROOMS))
        print(f"{name:16} {len(entered):5} {entered.total():6}  {busiest}", flush=True)


def moves_of(call: Callable[[], object]) -> Counter[str]:
    """Runs a function and returns the moves into each file that it enters."""
    entered = Counter[str]()

    def own_file(frame: FrameType | None) -> str | None:
        while frame is not None and not frame.f_code.co_filename.startswith(str(ROOT)):
            frame = frame.f_back
        return None if frame is None else frame.f_code.co_filename

    def count(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(ROOT)):
            entered[file] += own_file(frame.f_back) not in (None, file)

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def trips() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the name and the call of each trip: a run, a `fit`, and a pipeline, each for the first time and again."""
    strategy = ipu.IPUStrategy()
    double = tf.function(lambda x: x * 2, jit_compile=True)
    for when in ("first", "later"):
        yield f"run, {when}", lambda: strategy.run(double, (tf.ones([2]),))
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)])
        model.compile("sgd", "mse", steps_per_execution=4)
        x, y = np.ones([64, 4], np.float32), np.ones([64, 2], np.float32)
        for when in ("first", "later"):
            yield f"fit, {when}", lambda: model.fit(x, y, batch_size=8, verbose=0)
    config = ipu.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    pair = ipu.IPUStrategy()
    with pair.scope():
        first, second = (tf.Variable(tf.ones([4, 4])) for _ in range(2))
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([2, 4])).repeat())
    outfeed = ipu.IPUOutfeedQueue()
    infeed.initializer  # noqa: B018  (The access creates it before the trip.)

    @tf.function(jit_compile=True)
    def products() -> None:
        stages = [lambda x: x @ first, lambda x: x @ second]
        pipelining.pipeline(stages, 4, infeed_queue=infeed, outfeed_queue=outfeed, device_mapping=[0, 1])

    for when in ("first", "later"):
        yield f"pipeline, {when}", lambda: pair.run(products)


if __name__ == "__main__":
    main()
