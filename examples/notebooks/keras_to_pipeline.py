# %% [markdown]
# # From one IPU to a pipeline on replicas
#
# A Keras model on one IPU, on several IPUs as **replicas**, cut into the **stages** of a pipeline, and both together. What it
# learns stays the same: however an update of the weights is split, it sees the same 64 images.

# %%
import tensorflow_ipu as ipu

import keras
import numpy as np
from sklearn.datasets import load_digits

from tensorflow_ipu import pipelining

digits = load_digits()
images, labels = (digits.data / 16).astype("float32"), digits.target.astype("int32")
order = np.random.default_rng(1).permutation(len(images))
training, test = order[:1280], order[1280:1792]


def make_model():
    keras.utils.set_random_seed(1)
    widths = (256, 256, 128, 64)
    hidden = [
        keras.layers.Dense(width, "relu", name=f"hidden_{at}")
        for at, width in enumerate(widths)
    ]
    return keras.Sequential(
        [keras.Input([64]), *hidden, keras.layers.Dense(10, name="answer")]
    )


def compile_model(model, rate, steps):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        loss,
        metrics=["accuracy"],
        steps_per_execution=steps,
    )


def train(model, batch_size):
    keras.utils.set_random_seed(1)  # For the order of the images.
    model.fit(
        images[training],
        labels[training],
        batch_size=batch_size,
        epochs=4,
        verbose=0,
    )
    accuracy = model.evaluate(
        images[test], labels[test], batch_size=batch_size, verbose=0
    )[1]
    print(
        f"{int(model.optimizer.iterations)} updates; {accuracy:.1%} of the test's digits are right"
    )
    return model.get_weights()


# %% [markdown]
# ## One IPU

# %%
strategy = ipu.IPUStrategy()
with strategy.scope():
    model = make_model()
    compile_model(model, rate=0.05, steps=4)
first = train(model, batch_size=64)

# %% [markdown]
# ## Two replicas
#
# A device of two IPUs runs **two replicas** of a program: each has its own part of the data and a copy of the weights, and
# gradients are summed over them. Two batches of 32 are the 64 images of an update; half the rate makes the sum a mean.
#
# `IPUConfig` shows what differs from its defaults:

# %%
config = ipu.IPUConfig()
config.auto_select_ipus = 2
config.configure_ipu_system()
config

# %%
with strategy.scope():
    model = make_model()
    compile_model(model, rate=0.05 / 2, steps=4)
model.set_replication_options("MEAN")  # Logs are the mean of the replicas' metrics.
second = train(model, batch_size=32)
print(
    "largest difference of a weight is small:",
    max(float(np.abs(a - b).max()) for a, b in zip(first, second)) < 1e-4,
)

# %% [markdown]
# ## Two stages
#
# A model that is too large for an IPU is cut: each IPU has some of its layers. While IPU 1 works on one batch, IPU 0 has the
# next one. An update waits for so many **micro-batches**; the more there are, the less the IPUs wait for each other at both
# ends. How much that is depends on the schedule. `compare_plans` tries all of them, here for two stages and eight
# micro-batches, with stages that take equally long:

# %%
pipelining.compare_plans(2, 8, recompute=False)

# %% [markdown]
# Which layer goes where? `balance` reads the model, predicts what each layer takes of a machine, and proposes the split
# whose longest stage is the shortest:

# %%
with strategy.scope():
    model = make_model()
    compile_model(model, rate=0.05, steps=32)
model.set_pipelining_options(
    gradient_accumulation_steps_per_replica=8,
    gradient_accumulation_reduction_method="mean",
)
proposal = pipelining.balance(model, 2, "GC200", batch_size=8)
proposal

# %% [markdown]
# The proposal's `assignment` is what the model takes. From here on `fit` runs the pipeline: 8 micro-batches of 8 images.

# %%
model.set_pipeline_stage_assignment(proposal.assignment)
stages = [each.pipeline_stage for each in model.get_pipeline_stage_assignment()]
for layer, stage in zip(model.layers, stages):
    print(f"stage {stage}: {layer.name}")
third = train(model, batch_size=8)
print(
    "largest difference of a weight is small:",
    max(float(np.abs(a - b).max()) for a, b in zip(first, third)) < 1e-4,
)

# %% [markdown]
# ## Two stages on two replicas
#
# Four IPUs have room for two replicas of the pipeline. Nothing but the number of IPUs changes, and with it the images of a
# micro-batch: 2 replicas x 8 micro-batches x 4 images = 64 images.
#
# ```
#             stage 0   stage 1
# replica 0    IPU 0     IPU 1   --+
#                                  +-- gradients are summed, and each updates its copy
# replica 1    IPU 2     IPU 3   --+
# ```

# %%
config.auto_select_ipus = 4
config.configure_ipu_system()
with strategy.scope():
    model = make_model()
    compile_model(model, rate=0.05 / 2, steps=32)
model.set_pipelining_options(
    gradient_accumulation_steps_per_replica=8,
    gradient_accumulation_reduction_method="mean",
)
model.set_pipeline_stage_assignment(stages)
model.set_replication_options("MEAN")
fourth = train(model, batch_size=4)
print(
    "largest difference of a weight is small:",
    max(float(np.abs(a - b).max()) for a, b in zip(first, fourth)) < 1e-4,
)

# %% [markdown]
# ## What a machine would make of it
#
# The report on the pipeline has the picture of its execution, and the memory of each IPU of a replica. For such a small model
# it is honest: the stages take microseconds, and what passes between host and chip takes as long. Larger models are worth
# it: [Will it fit?](will_it_fit.ipynb)

# %%
model.ipu_report(4, machine="Bow Pod16")

# %% [markdown]
# More on all this: [pipelining](../../docs/pipelining.md), [plans](../../docs/pipeline_plans.md),
# [replication](../../docs/replication.md), [Keras](../../docs/keras.md).
