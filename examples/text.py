"""Trains a small network with word embeddings to distinguish two languages, by `model.fit` on the emulated IPU.

The languages are made up and have the same words. In one of them, an adjective is before its noun, in the other after it.
Phrases have any order, and some contain an error. So neither words nor their positions determine the language: the network has
to learn which words are nouns, and to read them in order.
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # Makes results depend less on the processor.

import keras
import numpy as np

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import layers

SEED = 1
BATCH = 32
LENGTH = 8  # The number of words of a sentence, with padding.
SLIPS = 0.02  # The share of phrases in the wrong order.


def make_words(random):
    """Returns 40 nouns, 40 adjectives and 40 verbs of two syllables. All words are distinct."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    words = sorted({first + second for first in syllables for second in syllables})
    return random.choice(words, [3, 40], replace=False)


def make_sentence(words, language, random):
    """Returns a sentence of two or three phrases and a verb, in any order."""
    nouns, adjectives, verbs = words
    parts = [[random.choice(verbs)]]
    for _ in range(random.integers(2, 4)):
        phrase = [random.choice(adjectives), random.choice(nouns)]
        parts.append(phrase if language == (random.random() < SLIPS) else phrase[::-1])
    random.shuffle(parts)
    return [word for part in parts for word in part]


def make_data(count):
    """Returns sentences as int32 [count, LENGTH], padded with 0, languages as int32 [count], and the list of words."""
    random = np.random.default_rng(SEED)
    words = make_words(random)
    ids = {word: number for number, word in enumerate(words.ravel(), 1)}
    languages = random.integers(0, 2, count).astype(np.int32)
    sentences = np.zeros([count, LENGTH], np.int32)
    for row, language in zip(sentences, languages, strict=True):
        sentence = make_sentence(words, language, random)
        row[: len(sentence)] = [ids[word] for word in sentence]
    return sentences, languages, list(ids)


def make_model(words):
    """Returns a network that embeds words, reads them in order, and computes the logits of the two languages."""
    return keras.Sequential(
        [
            keras.layers.Input([LENGTH], dtype="int32"),
            layers.Embedding(words, 16, mask_zero=True),
            layers.Dropout(0.2),
            layers.PopnnGRU(24),
            keras.layers.Dense(2),
        ]
    )


def main():
    """Trains the network, and tests it on sentences that it was not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="passes over the 2048 training sentences (%(default)s)")
    arguments = parser.parse_args()

    keras.utils.set_random_seed(SEED)
    sentences, languages, words = make_data(2048 + 512)
    training, test = slice(2048), slice(2048, None)
    sys.stdout.reconfigure(line_buffering=True)  # Prints each line at once, also to a pipe.
    print(f"{len(words)} words, such as {' '.join(words[number - 1] for number in sentences[0] if number)}")

    config = ipu.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    with ipu.IPUStrategy().scope():
        model = make_model(len(words) + 1)
        model.compile(
            optimizer=keras.optimizers.Adam(0.004),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=512 // BATCH,  # The number of steps in one run of a program.
        )
        print_epoch = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: print(
                f"epoch {epoch + 1}  training loss {logs['loss']:.3f}  test accuracy {logs['val_accuracy']:.3f}"
            )
        )
        model.fit(
            sentences[training],
            languages[training],
            batch_size=BATCH,
            epochs=arguments.epochs,
            validation_data=(sentences[test], languages[test]),
            callbacks=[print_epoch],
            verbose=0,
        )
        answers = model.predict(sentences[test], batch_size=BATCH, verbose=0).argmax(axis=1)
    print(f"test accuracy: {np.mean(answers == languages[test]):.3f}")


if __name__ == "__main__":
    main()
