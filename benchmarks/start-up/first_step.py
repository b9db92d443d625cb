"""Prints the seconds from `fit` to the end of its first execution: `first_step.py NETWORK plain|1|4`.

`plain` is Keras without `jit_compile`. A number is the number of pipeline stages in a strategy's scope.
"""

from __future__ import annotations

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "keras-fit"))

from networks import NETWORKS, keras, pipelined

BATCHES = 8  # The default schedule with four stages needs at least this many micro-batches per update.

network, stages = NETWORKS[sys.argv[1]], sys.argv[2]
if stages == "plain":
    model = network.compiled(jit_compile=False)
else:
    import tensorflow_ipu as ipu

    config = ipu.IPUConfig()
    config.auto_select_ipus = int(stages)
    config.configure_ipu_system()
    with ipu.IPUStrategy().scope():
        model = network.compiled(1 if stages == "1" else BATCHES)
    if stages != "1":
        pipelined(model, int(stages), BATCHES)
data = network.arrays(BATCHES)
ends: list[float] = []
note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: ends.append(time.perf_counter()))
start = time.perf_counter()
model.fit(*data, batch_size=network.batch, verbose=0, callbacks=[note])
print(ends[0] - start)
