"""Compares predictions of the machine model with published results.

Models are built in plain Keras with the published settings, and not trained. To test whether fitted constants would help,
the script fits two factors to every second result and applies them to the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import models
import tensorflow as tf
from predictions import Parts, Settings, Trained, best_product


@dataclass(frozen=True)
class Result:
    """A published result on a machine, and a function that predicts it."""

    name: str
    machine: str
    published: float
    unit: str
    predict: Callable[[], Parts]


# The settings are from Graphcore's public examples (github.com/graphcore/examples). ResNet-50:
# vision/cnns/tensorflow1/training/configs.yml, resnet50_mlperf_pod16_bs20 and resnet50_mlperf_pod64_bs20 (which has 0.145).
@functools.lru_cache(maxsize=1)
def _resnet50() -> Trained:
    return Trained(lambda: models.resnet50(20), Settings(1, 20, [0.15] * 7, sequential=True), 6)


# The same file, resnext101_16ipus. It names no proportion, so this is the default.
@functools.lru_cache(maxsize=1)
def _resnext101() -> Trained:
    return Trained(lambda: models.resnext101(6), Settings(2, 6, [0.6] * 2), 16)


# The same file, efficientnet_b4_g16_16ipus and efficientnet_b4_g16_64ipus.
@functools.lru_cache(maxsize=1)
def _efficientnet_b4() -> Trained:
    return Trained(lambda: models.efficientnet_b4(3), Settings(2, 3, [0.4] * 2), 64)


# vision/vit/pytorch/configs.yml, b16_imagenet1k.
@functools.lru_cache(maxsize=1)
def _vit() -> Trained:
    return Trained(lambda: models.vit(17), Settings(4, 17, [0.3] * 4), 32)


# nlp/bert/popart/configs/pretrain_large_128.json, packed/packed_pretrain_large_512.json, pretrain_base_128.json and
# pretrain_base_512.json. A pack of 512 has 2 sequences on average (Krell and others, arXiv:2107.02027).
@functools.lru_cache(maxsize=1)
def _bert_large_128() -> Trained:
    settings = Settings(4, 8, [0.15, 0.25, 0.25, 0.25, 0.15], offloaded=True, adaptive=True)
    return Trained(lambda: models.bert((3, 7, 7, 7), 1024, 16, 128, 20, 8), settings, 510)


@functools.lru_cache(maxsize=1)
def _bert_large_512() -> Trained:
    settings = Settings(4, 2, [0.16, 0.21, 0.21, 0.21, 0.16], offloaded=True, adaptive=True, per_sample=2.0)
    return Trained(lambda: models.bert((3, 7, 7, 7), 1024, 16, 512, 76, 2), settings, 1200)


@functools.lru_cache(maxsize=1)
def _bert_base_128() -> Trained:
    settings = Settings(4, 32, [0.28] * 5, offloaded=True, adaptive=True)
    return Trained(lambda: models.bert((0, 4, 4, 4), 768, 12, 128, 20, 32), settings, 510)


@functools.lru_cache(maxsize=1)
def _bert_base_512() -> Trained:
    settings = Settings(4, 8, [0.28] * 5, offloaded=True, adaptive=True)
    return Trained(lambda: models.bert((0, 4, 4, 4), 768, 12, 512, 76, 8), settings, 510)


def _product(sizes: Sequence[int], dtype: tf.DType, machine: str) -> Callable[[], Parts]:
    return functools.partial(best_product, sizes, dtype, machine)


def _trained(make: Callable[[], Trained], machine: str, replicas: int, accumulated: int) -> Callable[[], Parts]:
    return lambda: make().predict(machine, replicas, accumulated)


_SIZES = (1024, 2048, 2944)
RESULTS = (
    # Shekofteh and others, arXiv:2310.00256.
    Result("product 3584, float32", "GC200", 44.0, "TFLOP/s", _product((3584,), tf.float32, "GC200")),
    # Jia and others, arXiv:1912.03413.
    Result("best product, float32", "GC2", 18.9, "TFLOP/s", _product(_SIZES, tf.float32, "GC2")),
    Result("best product, float16", "GC2", 58.9, "TFLOP/s", _product(_SIZES, tf.float16, "GC2")),
    # All others are from Graphcore's page of performance results. ResNet-50 has batches of 1,920, 2,560 and 10,240 images.
    Result("ResNet-50", "Bow Pod16", 42029, "images/s", _trained(_resnet50, "Bow Pod16", 16, 6)),
    Result("ResNet-50", "Bow Pod64", 145287, "images/s", _trained(_resnet50, "Bow Pod64", 64, 2)),
    Result("ResNet-50", "Bow Pod256", 425514, "images/s", _trained(_resnet50, "Bow Pod256", 256, 2)),
    Result("ResNeXt-101", "Bow Pod16", 12221, "images/s", _trained(_resnext101, "Bow Pod16", 8, 16)),
    Result("EfficientNet-B4, G16", "Bow Pod16", 8936, "images/s", _trained(_efficientnet_b4, "Bow Pod16", 8, 256)),
    Result("EfficientNet-B4, G16", "Bow Pod64", 34943, "images/s", _trained(_efficientnet_b4, "Bow Pod64", 32, 64)),
    Result("ViT-B/16", "Bow Pod64", 31200, "images/s", _trained(_vit, "Bow Pod64", 16, 30)),
    Result("BERT-Large, 128 tokens", "Bow Pod16", 5179, "sequences/s", _trained(_bert_large_128, "Bow Pod16", 4, 2048)),
    Result(
        "BERT-Large, 128 tokens", "Bow Pod64", 19353, "sequences/s", _trained(_bert_large_128, "Bow Pod64", 16, 512)
    ),
    Result(
        "BERT-Large, 512, packed", "Bow Pod16", 2126, "sequences/s", _trained(_bert_large_512, "Bow Pod16", 4, 1200)
    ),
    Result("BERT-Base, 128 tokens", "Bow Pod16", 16391, "sequences/s", _trained(_bert_base_128, "Bow Pod16", 4, 512)),
    Result("BERT-Base, 512 tokens", "Bow Pod16", 3656, "sequences/s", _trained(_bert_base_512, "Bow Pod16", 4, 512)),
)
# The factors that a fit tries for the times of arithmetic and of moves.
_FACTORS = [percent / 100 for percent in range(50, 205, 5)]


def fitted(predictions: Sequence[tuple[Result, Parts]]) -> tuple[float, float]:
    """Returns the factors of arithmetic and of moves with the least squares of log(predicted / published)."""

    def squares(factors: tuple[float, float]) -> float:
        return sum(math.log(parts.rate(*factors) / result.published) ** 2 for result, parts in predictions)

    return min(itertools.product(_FACTORS, _FACTORS), key=squares)


def _errors(predictions: Sequence[tuple[Result, Parts]], factors: tuple[float, float] = (1.0, 1.0)) -> str:
    errors = [abs(parts.rate(*factors) / result.published - 1) for result, parts in predictions]
    return f"median {statistics.median(errors):.0%}, worst {max(errors):.0%}"


def main() -> None:
    """Prints the table, and the errors of each half of the results with factors that are fitted to the first half."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="predict only results whose name and machine contain this")
    parser.add_argument("--kept", type=Path, help="a file that stores predictions, so that later calls reuse them")
    options = parser.parse_args()
    keras.config.set_dtype_policy("float16")
    stored = json.loads(options.kept.read_text()) if options.kept and options.kept.exists() else {}
    print("| result | machine | predicted | published | | error | fitted | half | memory | verdict |")
    print("| --- | --- | ---: | ---: | --- | ---: | ---: | --- | ---: | --- |")
    predictions = []
    for number, result in enumerate(RESULTS):
        name = f"{result.name}, {result.machine}"
        if options.only not in name:
            continue
        parts = Parts(**stored[name]) if name in stored else result.predict()
        stored[name] = dataclasses.asdict(parts)
        if options.kept:
            options.kept.write_text(json.dumps(stored, indent=1) + "\n")
        predictions.append((number, result, parts))
    halves = [[(result, parts) for number, result, parts in predictions if number % 2 == half] for half in range(2)]
    factors = fitted(halves[0]) if halves[0] else (1.0, 1.0)
    for number, result, parts in predictions:
        value = parts.rate()
        errors = [rate / result.published - 1 for rate in (value, parts.rate(*factors))]
        print(
            f"| {result.name} | {result.machine} | {value:,.4g} | {result.published:,.4g} | {result.unit} |"
            f" {errors[0]:+.0%} | {errors[1]:+.0%} | {('fit', 'held out')[number % 2]} | {parts.memory:.0%} | {parts.verdict} |"
        )
    print(f"\nfitted factors: {factors[0]:.2f} of arithmetic, {factors[1]:.2f} of moves")
    for name, half in zip(("fit", "held out", "all"), (*halves, halves[0] + halves[1]), strict=True):
        if half:
            print(f"{name}: unfitted {_errors(half)}; fitted {_errors(half, factors)}")


if __name__ == "__main__":
    main()
