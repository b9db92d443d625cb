# %% [markdown]
# # The first program
#
# An IPU runs **programs**: a whole training loop, with its reading of data, its gradients and its updates, compiled once, and
# run without Python. This notebook trains a small network on handwritten digits, first as Keras does it, then by hand, and
# asks what a real machine would make of it.
#
# `import tensorflow_ipu` comes first: it adds the devices `/device:IPU:0`, `/device:IPU:1`, ... to TensorFlow.

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
for at, (axis, image) in enumerate(zip(axes, digits.images)):
    axis.imshow(image, cmap="gray_r")
    axis.set_title(labels[at])
    axis.axis("off")

# %% [markdown]
# ## A model of Keras
#
# An `IPUStrategy` says where variables live and where programs run. A notebook shows what it is:

# %%
strategy = ipu.IPUStrategy()
strategy

# %% [markdown]
# Models, optimizers and metrics are made **inside the scope** of the strategy. The rest is Keras.
#
# `steps_per_execution=40` makes 40 steps one run of the program. On the IPU this matters: between runs the host has its say,
# within a run nobody waits for Python. `batch_size` divides the data, as the shapes of a program are fixed: 1,600 images are
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
# It has not seen the last images, of which we take 160, as 40 batches of 4:

# %%
accuracy = model.evaluate(
    images[1600:1760], labels[1600:1760], batch_size=4, verbose=0
)[1]
print(f"{accuracy:.0%} of the other digits are right")

# %% [markdown]
# ## A loop of your own
#
# The same by hand. A `tf.function` with `jit_compile=True` becomes a program when `strategy.run` runs it:
#
# * an **infeed** brings data into it. `iter(dataset)` makes one, inside the scope;
# * an **outfeed** hands results back, while the program runs or after it;
# * the loop over `tf.range` runs on the device. A number of steps that is a tensor needs no new program when it changes.

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
# `tf.print` works inside of programs, and what it prints lands under the cell that runs the program:

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
# The outfeed has the loss of every step. `dequeue` takes all that is there, as one tensor:

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
# ## What happened
#
# `metrics_report` counts and times what there was. Each program that was traced stands there with the reason; a training
# loop that is compiled again and again is the commonest cause of slowness ([What happened here](../../docs/observing.md)).

# %%
ipu.metrics_report()

# %% [markdown]
# ## Would it fit a real machine?
#
# A **report** is the prediction of a model of the machine: memory, time of a step, and what takes it. Nothing is run for it.
# As text it is one line,

# %%
report = strategy.report(
    train, [iterator, tf.constant(400)], trip_counts={"*": 400}, machine="GC200"
)
print(repr(report))

# %% [markdown]
# and as the last line of a cell it is a page. Such a small network is bound by the data that the host sends: most of a step
# is `host`.

# %%
report

# %% [markdown]
# ## What next
#
# * [From one IPU to a pipeline on replicas](keras_to_pipeline.ipynb): the same in Keras on several IPUs.
# * [Will it fit?](will_it_fit.ipynb): ask before you have a machine.
# * [Port a script](port_a_script.ipynb) that was written for IPUs.
