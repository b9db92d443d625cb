"""The example of half precision stops where an IPU would, and trains with the advised loss scale."""

from __future__ import annotations

import re


def test_an_overflow_stops_the_ipu_and_not_the_cpu(run_example):
    on_cpu, stopped, advised = run_example("half_precision")
    assert re.fullmatch(r"float16 of the CPU, loss scale 32768: the loss goes from .* to .*", on_cpu)
    assert re.search(r"MatMul `.*` \(half_precision\.py:\d+\) gave .*, and the largest number of float16", stopped)
    first, last = map(float, re.findall(r"[\d.]+$|[\d.]+(?= to)", advised))
    assert last < first / 100
