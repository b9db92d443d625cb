"""What the programs beside this file share: an option for each default, seeds, and a file of results."""

import argparse
import json
import random

import numpy as np
import tensorflow as tf


def parse(words, **defaults):
    """Returns the arguments of a command line, or of `words`, with the type of their defaults."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, value in defaults.items():
        is_list = isinstance(value, list)
        kind = type(value[0] if is_list else value)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, nargs="+" if is_list else None, default=value)
    parser.add_argument("--results", help="a JSON file for losses and what else was found")
    return parser.parse_args(words)


def seed(number):
    random.seed(number)
    np.random.seed(number)
    tf.random.set_seed(number)


def save(args, results):
    with open(args.results, "w") as file:
        json.dump(results, file)
