# %% [markdown]
# # Will it fit, and what would help?
#
# An IPU stores a program and its data in the memory of its tiles, about 900 MB. Nothing is moved to other memory automatically.
# So the first question about a model is whether it fits. This notebook answers it for a language model, without a machine and
# without training. The prediction only needs a trace of one step.

# %%
import tensorflow_ipu as ipu

import keras

from tensorflow_ipu import machine, pipelining

strategy = ipu.IPUStrategy()


def make_model(layers=2, width=1024, tokens=256, words=16384):
    ids = keras.Input([tokens], dtype="int32", name="ids")
    x = keras.layers.Embedding(words, width, name="embedding")(ids)
    for i in range(layers):
        y = keras.layers.LayerNormalization(name=f"norm_{i}a")(x)
        attention = keras.layers.MultiHeadAttention(
            width // 64, 64, name=f"attention_{i}"
        )
        x = keras.layers.Add(name=f"add_{i}a")(
            [x, attention(y, y, use_causal_mask=True)]
        )
        y = keras.layers.LayerNormalization(name=f"norm_{i}b")(x)
        y = keras.layers.Dense(4 * width, "gelu", name=f"wide_{i}")(y)
        x = keras.layers.Add(name=f"add_{i}b")(
            [x, keras.layers.Dense(width, name=f"narrow_{i}")(y)]
        )
    x = keras.layers.LayerNormalization(name="norm")(x)
    model = keras.Model(
        ids,
        keras.layers.Dense(words, use_bias=False, name="next_word")(x),
        name="language_model",
    )
    model.compile(
        keras.optimizers.Adam(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


with strategy.scope():
    model = make_model()
print(f"{model.count_params():,} weights")

# %% [markdown]
# ## Report on the model
#
# `ipu_report` traces a training step for batches of 4. It predicts the memory and time on a GC200, the IPU of Pod4 to Pod64.
# The `repr` of the report is a summary:

# %%
report = model.ipu_report(4, machine="GC200")
print(repr(report))

# %% [markdown]
# The model does not fit. The page explains the reason. *Liveness* shows the memory over time: weights, the optimizer's two
# moments of each weight, and the activations that are stored for the backward pass.

# %%
report

# %% [markdown]
# ## Advice
#
# `advice` predicts the effect of each of many changes, and lists those that help, in order of their effect. If the program may
# not fit, it also combines changes into a recipe. The recipe shows the effect of each step, and code to paste.

# %%
report.advice()

# %% [markdown]
# ## Apply changes
#
# The recipe uses float16 for everything, including weights. With Keras's policy `mixed_float16`, the model also computes in
# float16, but its weights are float32. The largest float16 value is 65504, and its precision is low. `ipu.precision_report`
# shows the effect on each tensor of a model ([The precision report](../../docs/precision_report.md)).
#
# This model is still too large for one IPU, so we split it into a pipeline. `balance` finds stages that fit and take equally
# long:

# %%
keras.mixed_precision.set_global_policy("mixed_float16")
with strategy.scope():
    half = make_model()
keras.mixed_precision.set_global_policy("float32")
half.set_pipelining_options(gradient_accumulation_steps_per_replica=16)
proposal = pipelining.balance(half, 4, "GC200", batch_size=1)
proposal

# %% [markdown]
# One call assigns the stages to the model. A second report shows that the model fits the four IPUs of a Pod4.

# %%
config = ipu.IPUConfig()
config.auto_select_ipus = 4
config.configure_ipu_system()
half.set_pipeline_stage_assignment(proposal.assignment)
final = half.ipu_report(1, machine="IPU-POD4")
print(repr(final))

# %% [markdown]
# `compare_reports` shows the differences of two reports. A step is a batch of 4 in the first one, and a micro-batch of 1 in the
# second.

# %%
machine.compare_reports(report, final)

# %% [markdown]
# ## Accuracy of reports
#
# A report is the prediction of a model of the machine, and lists its assumptions. Compared with published results, predicted
# throughputs were 10 % too low to 38 % too high, so a report gives a range for the time of a step. If the predicted memory is
# between 90 % and 125 % of that of the machine, the verdict is `may fit`, because the result depends on the machine's compiler.
# [Machine reports](../../docs/machine.md) has more details.
