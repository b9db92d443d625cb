"""Prints the seconds that the demo takes to trace its program, and to compile it and run its first step.

If an argument names a folder, compiled programs are stored there.
"""

from __future__ import annotations

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

import digits
import tensorflow as tf

import tensorflow_ipu as ipu

if len(sys.argv) > 1:
    ipu.executables.set_cache(sys.argv[1])
tf.keras.utils.set_random_seed(digits.SEED)
training_images, test_images, training_labels, test_labels = digits.load_data()
strategy = ipu.IPUStrategy()
with strategy.scope():
    model, optimizer = digits.make_model(), tf.keras.optimizers.Adam(0.003)
    training, _ = digits.training_dataset(training_images, training_labels, 32)
    test, _ = digits.test_dataset(test_images, test_labels, 32)
    queues = {"losses": ipu.IPUOutfeedQueue(), "right": ipu.IPUOutfeedQueue()}
    feeds = {"training": iter(training), "test": iter(test)}
    numbers = {"epochs": 1, "training_steps": 1, "test_steps": 1}
    begin = time.perf_counter()
    program = strategy.prepare(digits.train_and_test, (model, optimizer), {**feeds, **queues, **numbers})
    traced = time.perf_counter()
    program.run()
    end = time.perf_counter()
print(traced - begin, end - traced)
