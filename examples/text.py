"""Trains a small network to tell two languages apart, with word embeddings, by `model.fit` on the emulated IPU.

The languages are made up and have the same words. In one, an adjective stands before its noun, in the other behind it;
phrases come in any order, and speakers slip now and then. So words do not tell, nor does their place in the sentence: the
network has to learn which words are nouns, and to read them in order.
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's remarks on how it was built.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # The same figures on every processor, as far as that goes.

import keras
import numpy as np

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import layers

SEED = 1
BATCH = 32
LENGTH = 8  # Words a sentence, with padding.
SLIPS = 0.02  # The share of phrases in the wrong order.


def make_words(random):
    """Returns nouns, adjectives and verbs of two syllables, 40 of each, no word twice."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    words = sorted({first + second for first in syllables for second in syllables})
    return random.choice(words, [3, 40], replace=False)


def make_sentence(words, language, random):
    """Two or three phrases and a verb, in any order."""
    nouns, adjectives, verbs = words
    parts = [[random.choice(verbs)]]
    for _ in range(random.integers(2, 4)):
        phrase = [random.choice(adjectives), random.choice(nouns)]
        parts.append(phrase if language == (random.random() < SLIPS) else phrase[::-1])
    random.shuffle(parts)
    return [word for part in parts for word in part]


def make_data(count):
    """Returns sentences as int32 [count, LENGTH], 0 where there is no word, languages as int32 [count], and the words."""
    random = np.random.default_rng(SEED)
    words = make_words(random)
    numbers = {word: number for number, word in enumerate(words.ravel(), 1)}
    languages = random.integers(0, 2, count).astype(np.int32)
    sentences = np.zeros([count, LENGTH], np.int32)
    for row, language in zip(sentences, languages, strict=True):
        sentence = make_sentence(words, language, random)
        row[: len(sentence)] = [numbers[word] for word in sentence]
    return sentences, languages, list(numbers)


def make_model(words):
    """Embeds words, reads them in order, and gives the logits of the two languages."""
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
    """Trains, and tests on sentences that were not in the training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="passes over the 2048 training sentences (%(default)s)")
    arguments = parser.parse_args()

    keras.utils.set_random_seed(SEED)
    sentences, languages, words = make_data(2048 + 512)
    training, test = slice(2048), slice(2048, None)
    sys.stdout.reconfigure(line_buffering=True)  # Lines appear as they come, in a pipe too.
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
            steps_per_execution=512 // BATCH,  # So many steps are one run of a program.
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
