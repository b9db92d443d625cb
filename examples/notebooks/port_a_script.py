# %% [markdown]
# # Port a script of 2021
#
# IPU TensorFlow, Graphcore's fork of TensorFlow 2.4 to 2.6, had its names in `tensorflow.python.ipu`. The **compatibility
# layer** runs scripts that were written for it unchanged. Later, you can replace the old names step by step.
#
# ## The script
#
# The script is a training loop as in Graphcore's guides of 2021. It uses names of the fork, queues, `loops.repeat`, and an
# optimizer of TensorFlow 1.

# %%
from pathlib import Path

SCRIPT = """\
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import ipu_infeed_queue, ipu_outfeed_queue, loops
from tensorflow.python.ipu.config import IPUConfig

tf.disable_v2_behavior()

x = np.linspace(-1, 1, 64).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, 3 * x + 1)).repeat().batch(16, drop_remainder=True)

infeed = ipu_infeed_queue.IPUInfeedQueue(dataset)
outfeed = ipu_outfeed_queue.IPUOutfeedQueue()

def body(x, y):
    with tf.variable_scope("line", use_resource=True, reuse=tf.AUTO_REUSE):
        slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
        offset = tf.get_variable("offset", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(slope * x + offset - y))
    train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
    return outfeed.enqueue({"loss": loss, "slope": slope, "offset": offset}), train

def program():
    return loops.repeat(200, body, [], infeed)

with ipu.scopes.ipu_scope("/device:IPU:0"):
    run = ipu.ipu_compiler.compile(program, inputs=[])
dequeue = outfeed.dequeue()

config = IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(infeed.initializer)
    session.run(run)
    last = {name: values[-1] for name, values in session.run(dequeue).items()}
    print("y = {slope:.2f} x + {offset:.2f}, loss {loss:.4f}".format(**last))
"""
_ = Path("train_2021.py").write_text(SCRIPT)
# %% [markdown]
# ## Check the script
#
# `--check` reads scripts without running them. It lists unsupported names with their lines, and names without an effect:

# %%
# !python -m tensorflow_ipu --check train_2021.py

# %% [markdown]
# It finds misspelled and unsupported names before anything runs:

# %%
_ = Path("misspelled.py").write_text(
    SCRIPT.replace("loops.repeat(", "loops.repeats(")
)
# !python -m tensorflow_ipu --check misspelled.py

# %% [markdown]
# ## Run the script
#
# `python -m tensorflow_ipu` runs a script as `python` would, but with the old names:

# %%
# !python -m tensorflow_ipu train_2021.py 2> messages.txt

# %% [markdown]
# ## In a notebook
#
# In a notebook, call `compat.install()` before anything imports the old names. The rest of this cell is code of 2021:

# %%
from tensorflow_ipu import compat

compat.install()

import tensorflow as tf
from tensorflow.python import ipu

strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(
        tf.data.Dataset.from_tensors(2.0).repeat()
    )
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()


def body(total, value):
    outfeed.enqueue(total)
    return total + value


@tf.function(experimental_compile=True)
def program():
    return ipu.loops.repeat(3, body, [0.0], infeed)


infeed.initializer
print(float(strategy.run(program)), outfeed.dequeue().numpy())

# %% [markdown]
# The old names create objects of this package, which a notebook displays:

# %%
infeed

# %% [markdown]
# ## The script with today's names
#
# This is the same training without the compatibility layer. An iterator replaces the infeed and its `initializer`. A Python
# loop replaces `loops.repeat`, and Keras's optimizer replaces that of TensorFlow 1. `strategy.run` replaces `compile` and the
# session.

# %%
compat.uninstall()

import keras
import numpy as np

import tensorflow_ipu

x = np.linspace(-1, 1, 64).astype(np.float32)
dataset = (
    tf.data.Dataset.from_tensor_slices((x, 3 * x + 1))
    .repeat()
    .batch(16, drop_remainder=True)
)

strategy = tensorflow_ipu.IPUStrategy()
with strategy.scope():
    slope, offset = tf.Variable(0.0), tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build([slope, offset])
    iterator = iter(dataset)
losses = tensorflow_ipu.IPUOutfeedQueue()


@tf.function(jit_compile=True)
def train(iterator, steps):
    for _ in tf.range(steps):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(slope * x + offset - y))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, [slope, offset]), [slope, offset])
        )
        losses.enqueue(loss)


strategy.run(train, args=(iterator, tf.constant(200)))
print(
    f"y = {slope.numpy():.2f} x + {offset.numpy():.2f}, loss {losses.dequeue().numpy()[-1]:.4f}"
)

# %% [markdown]
# ## More on porting
#
# * [Code that was written for IPUs](../../docs/porting.md): Keras 2, old names of other packages, and a list of all names.
# * [The SDK's guide, chapter by chapter](../../docs/from_the_sdk.md): the pages here for each chapter.
