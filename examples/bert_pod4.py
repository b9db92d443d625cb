"""Predicts, without a run, whether a BERT fits a POD4 and how long a step takes, and prints advice.

The model has four pipeline stages. It uses recomputation, and Adam's moments are off-chip:

    IPU 0                    IPU 1              IPU 2              IPU 3
    embedding, encoders ---> encoders --------> encoders --------> encoders, dense layer
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import keras
from keras import layers

import tensorflow_ipu as ipu

STAGES = 4


def encoder(x, width, number):
    """Adds a layer of BERT, with attention and two dense layers, and returns its output."""
    y = layers.MultiHeadAttention(width // 64, 64, name=f"attention_{number}")(x, x)
    x = layers.LayerNormalization(name=f"attention_norm_{number}")(x + y)
    y = layers.Dense(4 * width, "gelu", name=f"wide_{number}")(x)
    y = layers.Dense(width, name=f"narrow_{number}")(y)
    return layers.LayerNormalization(name=f"norm_{number}")(x + y)


def make_model(count, width, tokens, words):
    """Returns a compiled model that predicts masked words, with an equal number of encoders on each of four IPUs."""
    with ipu.keras.PipelineStage(0):
        ids = keras.Input([tokens], dtype="int32")
        x = layers.Embedding(words, width, name="words")(ids)
    for number in range(count):
        with ipu.keras.PipelineStage(number * STAGES // count):
            x = encoder(x, width, number)
    with ipu.keras.PipelineStage(STAGES - 1):
        model = keras.Model(ids, layers.Dense(words, name="guess")(x), name="bert")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, steps_per_execution=32)
    return model


def main():
    """Prints the memory and the time of the model, and advice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4, help="encoders; at least 4")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--words", type=int, default=30_000)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a micro-batch")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--machine", default="IPU-POD4")
    options = parser.parse_args()
    config = ipu.IPUConfig()
    config.auto_select_ipus = STAGES
    config.configure_ipu_system()
    original_policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(options.dtype)
    with ipu.IPUStrategy().scope():
        model = make_model(options.layers, options.width, options.tokens, options.words)
    keras.config.set_dtype_policy(original_policy)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=32,
        recomputation_mode=ipu.pipelining.RecomputationMode.RecomputeAndBackpropagateInterleaved,
        offload_weight_update_variables=True,
    )
    report = model.ipu_report(options.batch, machine=options.machine)
    for memory in report.memories:
        share = f"{memory.low / memory.capacity:.0%} to {memory.high / memory.capacity:.0%}"
        print(f"IPU {memory.ipu}: {memory.verdict}, {share} of its memory")
    rate = report.throughput(options.batch)
    print(f"{1e3 * report.step_seconds:.2f} ms a micro-batch, {rate:,.0f} sequences a second")
    recipe = report.advice().recipe  # There is a recipe if the model may not fit.
    for step in report.advice() if recipe is None else recipe.steps:
        print(
            f"x {step.speed:.2f}, {step.memory / report.memory.capacity:.0%} of memory, {step.verdict}: {step.change}"
        )
    if recipe is not None:
        print(recipe.code)


if __name__ == "__main__":
    main()
