# %% [markdown]
# # Will it fit, and what would help?
#
# An IPU keeps a program and its data in the memory of its tiles: some 900 MB, and nothing spills by itself. So the first
# question about a model is whether it fits. This notebook asks it for a language model, without a machine and without
# training: all that is needed is a trace of one step.

# %%
import tensorflow_ipu as ipu

import keras

from tensorflow_ipu import machine, pipelining

strategy = ipu.IPUStrategy()


def make_model(layers=2, width=1024, tokens=256, words=16384):
    ids = keras.Input([tokens], dtype="int32", name="ids")
    x = keras.layers.Embedding(words, width, name="embedding")(ids)
    for at in range(layers):
        y = keras.layers.LayerNormalization(name=f"norm_{at}a")(x)
        attention = keras.layers.MultiHeadAttention(
            width // 64, 64, name=f"attention_{at}"
        )
        x = keras.layers.Add(name=f"add_{at}a")(
            [x, attention(y, y, use_causal_mask=True)]
        )
        y = keras.layers.LayerNormalization(name=f"norm_{at}b")(x)
        y = keras.layers.Dense(4 * width, "gelu", name=f"wide_{at}")(y)
        x = keras.layers.Add(name=f"add_{at}b")(
            [x, keras.layers.Dense(width, name=f"narrow_{at}")(y)]
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
# ## Ask
#
# `ipu_report` traces a training step for batches of 4 and predicts its memory and time on a GC200, the IPU of a Pod4 to
# Pod64. Its line is the answer:

# %%
report = model.ipu_report(4, machine="GC200")
print(repr(report))

# %% [markdown]
# It does not fit. The page says why: weights, the optimizer's two moments for each, and what the backward pass needs of the
# forward pass, at the moment when most of it is there (*Liveness*).

# %%
report

# %% [markdown]
# ## What would help
#
# `advice` tries changes, each alone, by the same model of the machine, and orders what helps. Where the program does not
# surely fit, it also combines them: a recipe, with what each step of it buys, as code to paste.

# %%
report.advice()

# %% [markdown]
# ## Try it
#
# The recipe has all in float16, weights too. A milder way: made under Keras's policy `mixed_float16`, the model computes in
# float16 and keeps its weights in float32. float16 ends at 65504 and has few digits: `ipu.precision_report` tells what it
# does to each tensor of a model ([What float16 makes of a model](../../docs/precision_report.md)).
#
# What is then too large for one IPU takes more of them. `balance` finds the stages of a pipeline that are equally long and fit:

# %%
keras.mixed_precision.set_global_policy("mixed_float16")
with strategy.scope():
    half = make_model()
keras.mixed_precision.set_global_policy("float32")
half.set_pipelining_options(gradient_accumulation_steps_per_replica=16)
proposal = pipelining.balance(half, 4, "GC200", batch_size=1)
proposal

# %% [markdown]
# One call gives the model its stages, and a second report says what became of them: on the four IPUs of a Pod4 it fits.

# %%
config = ipu.IPUConfig()
config.auto_select_ipus = 4
config.configure_ipu_system()
half.set_pipeline_stage_assignment(proposal.assignment)
final = half.ipu_report(1, machine="IPU-POD4")
print(repr(final))

# %% [markdown]
# A comparison of two reports says what changed, here for a step: a batch of 4 there, a micro-batch of 1 here.

# %%
machine.compare_reports(report, final)

# %% [markdown]
# ## How far to trust it
#
# A report is a model of the machine, with assumptions that it lists. Against published results, throughputs were
# predicted 10 % too low to 38 % too high; a step therefore has a range. Between 90 % and 125 % of the memory it says
# `may fit`: there it depends on what the machine's compiler finds. [The machine](../../docs/machine.md) has the rest.
