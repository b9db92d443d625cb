# %% [markdown]
# # From one IPU to a pipeline on replicas
#
# This notebook trains a Keras model on one IPU, on two **replicas**, in two pipeline **stages**, and in two stages on two
# replicas. The trained weights are the same in all cases, because each update of the weights uses the same 64 images.

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
        keras.layers.Dense(width, "relu", name=f"hidden_{index}")
        for index, width in enumerate(widths)
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
    keras.utils.set_random_seed(1)  # Determines the order of the images.
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
# A device of two IPUs runs **two replicas** of a program. Each replica has a part of the data and a copy of the weights.
# Gradients are summed over the replicas. The 64 images of an update are two batches of 32, and half the learning rate makes the
# sum a mean.
#
# `IPUConfig` shows the settings that differ from the defaults:

# %%
config = ipu.IPUConfig()
config.auto_select_ipus = 2
config.configure_ipu_system()
config

# %%
with strategy.scope():
    model = make_model()
    compile_model(model, rate=0.05 / 2, steps=4)
model.set_replication_options(
    "MEAN"
)  # Logs show the mean of the replicas' metrics.
second = train(model, batch_size=32)
print(
    "largest difference of a weight is small:",
    max(float(np.abs(a - b).max()) for a, b in zip(first, second)) < 1e-4,
)

# %% [markdown]
# ## Two stages
#
# A model that is too large for one IPU is split into stages, and each IPU has the layers of one stage. While IPU 1 works on one
# batch, IPU 0 works on the next one. An update uses the gradients of several **micro-batches**. At the start and the end of an
# update, some IPUs wait. The share of this time is smaller with more micro-batches, and depends on the schedule.
# `compare_plans` compares all schedules, here for eight micro-batches and two stages that take equally long:

# %%
pipelining.compare_plans(2, 8, recompute=False)

# %% [markdown]
# `balance` assigns layers to stages. It predicts the time and the memory of each layer on a machine, and proposes the split
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
# Pass the `assignment` of the proposal to the model. After that, `fit` runs the pipeline with 8 micro-batches of 8 images.

# %%
model.set_pipeline_stage_assignment(proposal.assignment)
assignments = model.get_pipeline_stage_assignment()
stages = [assignment.pipeline_stage for assignment in assignments]
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
# Four IPUs run two replicas of the pipeline. Only the number of IPUs and the number of images in a micro-batch change:
# 2 replicas x 8 micro-batches x 4 images = 64 images.
#
# ```
#             stage 0   stage 1
# replica 0    IPU 0     IPU 1   --+
#                                  +-- gradients are summed, each replica updates its copy
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
# ## A report on a real machine
#
# The report on the pipeline shows a picture of its execution, and the memory of each IPU of a replica. The stages of such a
# small model take only microseconds, and transfers between host and chip take as long. For large models, a pipeline is
# worthwhile: [Will it fit?](will_it_fit.ipynb)

# %%
model.ipu_report(4, machine="Bow Pod16")

# %% [markdown]
# The documentation has more on [pipelining](../../docs/pipelining.md), [plans](../../docs/pipeline_plans.md),
# [replication](../../docs/replication.md) and [Keras](../../docs/keras.md).
