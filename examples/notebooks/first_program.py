# %% [markdown]
# # The first program
#
# An IPU runs **programs**. A program is a whole training loop, which reads data, computes gradients and updates weights. It is
# compiled once, and runs without Python. This notebook trains a small network on handwritten digits, first with Keras and then
# with a custom loop. At the end, it predicts memory and time on a real machine.
#
# Import `tensorflow_ipu` first. It adds the devices `/device:IPU:0`, `/device:IPU:1` and so on to TensorFlow.

# %%
import tensorflow_ipu as ipu

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
digits = load_digits()
images, labels = (digits.data / 16).astype("float32"), digits.target.astype("int32")

figure, axes = plt.subplots(1, 8, figsize=(8, 1.2))
for axis, image, label in zip(axes, digits.images, labels):
    axis.imshow(image, cmap="gray_r")
    axis.set_title(label)
    axis.axis("off")

# %% [markdown]
# ## A Keras model
#
# An `IPUStrategy` determines the device of variables and programs. As the last line of a cell, it shows its settings:

# %%
strategy = ipu.IPUStrategy()
strategy

# %% [markdown]
# Create models, optimizers and metrics **inside the scope** of the strategy. Everything else is plain Keras.
#
# With `steps_per_execution=40`, one run of the program executes 40 steps. The IPU waits for Python only between runs, so
# training is faster with many steps per run. The shapes of a program are fixed, so all batches must be full: 1,600 images are
# 40 batches of 40.

# %%
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input([64]),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.003),
        loss,
        metrics=["accuracy"],
        steps_per_execution=40,
    )

_ = model.fit(images[:1600], labels[:1600], batch_size=40, epochs=5, verbose=2)
# %% [markdown]
# The model was not trained on the last images. We evaluate it on 160 of them, as 40 batches of 4:

# %%
accuracy = model.evaluate(
    images[1600:1760], labels[1600:1760], batch_size=4, verbose=0
)[1]
print(f"{accuracy:.0%} of the other digits are right")

# %% [markdown]
# ## A custom training loop
#
# You can also write the loop yourself. `strategy.run` runs a `tf.function` with `jit_compile=True` as a program:
#
# * An **infeed** is a queue of data for the program. Inside the scope, `iter(dataset)` creates one.
# * An **outfeed** is a queue of results. You can read it while the program runs, or afterwards.
# * The loop over `tf.range` runs on the device. If the number of steps is a tensor, it can change without a new compilation.

# %%
with strategy.scope():
    model = keras.Sequential(
        [keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    optimizer = keras.optimizers.Adam(0.003)
    optimizer.build(model.trainable_variables)
losses = ipu.IPUOutfeedQueue()


@tf.function(jit_compile=True)
def train(iterator, steps):
    for step in tf.range(steps):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        losses.enqueue(value)
        if step % 100 == 0:
            tf.print("step", step, "loss", value)


# %% [markdown]
# `tf.print` works inside of programs. Its output appears under the cell that runs the program:

# %%
dataset = (
    tf.data.Dataset.from_tensor_slices((images, labels))
    .shuffle(1800, seed=1)
    .repeat()
    .batch(40, drop_remainder=True)
)
with strategy.scope():
    iterator = iter(dataset)
strategy.run(train, args=(iterator, tf.constant(400)))

# %% [markdown]
# The outfeed has the loss of each step. `dequeue` returns all of them as one tensor:

# %%
losses

# %%
curve = losses.dequeue().numpy()

figure, axis = plt.subplots(figsize=(7, 2.6))
axis.plot(curve, linewidth=0.8)
axis.plot(np.convolve(curve, np.ones(20) / 20, "valid"), linewidth=2)
axis.set_xlabel("step")
axis.set_ylabel("loss")
axis.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## Metrics
#
# `metrics_report` shows counters and times. For each trace of a program, it gives the reason. The most common cause of slow
# training is a loop that is compiled again and again ([Metrics, traces and logs](../../docs/observing.md)).

# %%
ipu.metrics_report()

# %% [markdown]
# ## A report on a real machine
#
# A **report** predicts the memory and the time of a step on a real machine, by a model of that machine. It runs nothing. Its
# `repr` is one line:

# %%
report = strategy.report(
    train, [iterator, tf.constant(400)], trip_counts={"*": 400}, machine="GC200"
)
print(repr(report))

# %% [markdown]
# As the last line of a cell, the report is a page. In such a small network, most of the time of a step is `host`: the program
# waits for the data that the host sends.

# %%
report

# %% [markdown]
# ## Next steps
#
# * [From one IPU to a pipeline on replicas](keras_to_pipeline.ipynb) trains Keras models on several IPUs.
# * [Will it fit?](will_it_fit.ipynb) predicts whether a large model fits a machine, and finds changes that make it fit.
# * [Port a script](port_a_script.ipynb) runs a script that was written for IPUs.
