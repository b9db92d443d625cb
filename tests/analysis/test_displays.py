"""The displays of objects: one line, and in a notebook a page in a frame."""

import html
import itertools
import re
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.analysis.precision.figures import figures_of
from tensorflow_ipu.machine import (
    Memory,
    NotAsked,
    OperationTime,
    Report,
    Suggestion,
    Suggestions,
    compare_reports,
    system_of,
)
from tensorflow_ipu.precision import PrecisionReport, TensorRow

MIB = 2**20


def report(name, size):
    advice = Suggestions(
        (Suggestion("use <float16>", 1.5, size * MIB, "fits"),), (NotAsked("more tiles", "why `not`"),)
    )
    rows = tuple(OperationTime(f"dense_{index}/MatMul", "dot", "f32[8,8]", 1, 1e-5) for index in range(500))
    memory = Memory(size * MIB, 0, MIB, MIB, 2 * MIB, 600 * MIB, liveness=tuple((index, index) for index in range(400)))
    return Report(name, system_of("Bow Pod16"), 4, rows, (memory,), (), overlaps_host=False, given_advice=advice)


def frame_of(value: Any) -> tuple[str, str]:
    """Returns the HTML that a notebook shows, and the page in its frame."""
    frame = value._repr_html_()
    match = re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"<>]*"\s+onload="[^"<>]*"></iframe>', frame)
    assert match
    return frame, html.unescape(match[1])


def of_programs(strategy):
    with strategy.scope():
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(1.0).repeat())
        outfeed = ipu.IPUOutfeedQueue()
        yield "infeed", infeed, "IPUInfeedQueue infeed_", "no: access its <code>initializer</code>"
        _ = infeed.initializer

        @tf.function(jit_compile=True)
        def program():
            ipu.loops.repeat(3, outfeed.enqueue, [], infeed)

        strategy.run(program)
        yield "strategy", strategy, "<IPUStrategy on /device:IPU:0: 2 IPUs>", "in its scope</td><td>yes"
    yield "outfeed", outfeed, "mode ALL", "elements so far</td><td>6"
    yield "metrics", ipu.metrics_report(), "Metric: ", "<td>RunTime</td>"


def of_plans():
    costs = pipelining.StageCost(activation_bytes=MIB)
    plan = pipelining.pipeline_plan(4, 16)
    picture = 'src="data:image/png;base64,'
    yield "plan", plan, "<Plan Grouped: 4 stages, 16 micro-batches, training>", picture
    cost = pipelining.plan_cost(plan, costs)
    yield (
        "cost",
        cost,
        "<PlanCost of Grouped: 4 stages, 16 micro-batches, training: time 57.5, 16% bubble, at most",
        "7.0 MiB",
    )
    compared = pipelining.compare_plans(4, 16, costs, machine="GC200")
    yield "comparison of plans", compared, "<Comparison of 56 candidates: Grouped on", "that cannot be run</summary>"
    yield (
        "none can be run",
        pipelining.compare_plans(2, 3, costs, bytes_per_ipu=1),
        "none can be run",
        "on an IPU, which has 1 B",
    )
    balance = pipelining.balance([costs] * 4, 2, "GC200")
    yield "balance", balance, "<Balance: 2 stages, one an IPU, ", "piece 0 ... piece 1, 2 pieces"


def of_reports():
    first, second = report("train & <test>", 100), report("train", 700)
    yield (
        "report",
        first,
        "<Report of train & <test> on Bow in Bow Pod16, 4 x 1 IPUs: fits (17% of the memory), ",
        "fits",
    )
    yield "comparison", compare_reports(first, second), "before:  train & <test>", "<h2>Changes</h2>"
    yield (
        "advice",
        first.advice(),
        "<1 suggestion: first use <float16> (x 1.50, fits); 1 not evaluated>",
        "use &lt;float16&gt;",
    )
    yield "no advice", Suggestions(), "<0 suggestions; 0 not evaluated>", "No change that was evaluated helps."
    values = np.geomspace(1e-9, 1e9, 9, dtype=np.float32)
    with np.errstate(over="ignore"):
        rows = (TensorRow("dense", "activation", "", (figures_of(values, values.astype(np.float16)),)),)
    one = PrecisionReport("model", "/device:IPU:0", 1.0, rows, ((1.0, 1.0),))
    yield (
        "precision",
        one,
        "<PrecisionReport of model, 1 step: 1 of 1 tensors overflow, loss scale 1>",
        "<h2>Advice</h2>",
    )


def test_an_object_says_what_it_is_in_a_line_and_shows_a_page_of_its_own_in_a_notebook(replicas, read_page):
    strategy = replicas(2)
    config = ipu.IPUConfig()
    config.io_tiles.num_io_tiles = 32
    configs = [
        (
            "configuration",
            config,
            "IPUConfig(io_tiles.num_io_tiles=32)",
            "<td><code>32</code></td><td><code>0</code></td>",
        ),
        ("category", config.matmuls, "Matmuls()", "All is as by default."),
    ]
    for name, shown, line, inside in itertools.chain(configs, of_programs(strategy), of_plans(), of_reports()):
        text = shown if isinstance(shown, str) else repr(shown)
        assert line in text, name
        if not isinstance(shown, str):
            assert "\n" not in text, name
            assert len(text) < 300, name
        frame, page = frame_of(shown)
        assert inside in page, name
        assert read_page(frame).open == read_page(page).open == [], name
        assert all(address.startswith(("#", "data:")) for address in read_page(page).addresses), name
    order = [frame_of(config)[1].index(words) for words in ("num_io_tiles", "as by default", "auto_select_ipus")]
    assert order == sorted(order), "what differs from the default stands first"


def test_what_needs_matplotlib_shows_its_line_without(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert pipelining.pipeline_plan(2, 4)._repr_html_() is None
    with pytest.raises(ImportError, match="pip install"):
        pipelining.draw_plan(pipelining.pipeline_plan(2, 4), "plan.png")


def test_a_plan_is_shown_before_any_other_picture(run_script):
    run_script("""\
        from tensorflow_ipu import pipelining
        assert "data:image/png" in pipelining.pipeline_plan(2, 4)._repr_html_()
    """)
