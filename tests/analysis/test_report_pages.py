"""The layout of report pages in a browser: nothing is cut off, and only the page scrolls."""

import dataclasses
import functools
import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from tensorflow_ipu.analysis.pages import page_of, report_page
from tensorflow_ipu.analysis.precision.figures import figures_of
from tensorflow_ipu.machine import Memory, OperationTime, Report, TaskTime, Timeline, system_of
from tensorflow_ipu.precision import PrecisionReport, TensorRow

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
)
MIB = 2**20
LONG = "gradient_tape/while/transformer_1/encoder_block_0_feed_forward_1/Tensordot/MatMul"


def machine_report():
    """Returns a report on a pipeline over 4 IPUs with long names and large numbers."""
    rows = [
        OperationTime("while/IpuInfeedDequeue", "infeed", "(f32[1024,512,512])", 1000, host=2e-3, host_bytes=10**11),
        OperationTime("while/IpuAllReduce", "all-reduce", "f32[1024,1024]", 1000, links=3e-4),
    ]
    for ipu in range(4):
        for name, kind in ((LONG, "dot"), (f"{LONG}/slice", "dynamic-update-slice"), ("a" * 90, "select-and-scatter")):
            details = {"ipu": ipu, "part": f"stage {ipu} backward", "source": "pretraining_of_bert.py:1234"}
            rows.append(
                OperationTime(name, kind, "(f32[1024,512,512], s32[1024,512,512])", 123_456, 1.234e-3, 5e-4, 1e-4)
                if kind == "dot"
                else OperationTime(name, kind, "f32[1024,512,512]", 123_456, 1e-6, sync=1e-5)
            )
            rows[-1] = dataclasses.replace(rows[-1], flops=1.234e15, plan="128 x 128 x 128", **details)
    largest = tuple((f"{LONG}_{n}", MIB) for n in range(40))
    liveness = ((0, 5 * MIB), (3, 200 * MIB), (7, 20 * MIB))
    sizes = [size * MIB for size in (90, 0, 200, 20, 60, 897)]
    memories = tuple(Memory(*sizes, largest=largest, liveness=liveness, ipu=ipu) for ipu in range(4))
    tasks = tuple(
        TaskTime(ipu, (n + ipu) * 1e-3, (n + ipu + 1) * 1e-3, "forward", ipu, f"{ipu}F{n}")
        for n in range(4)
        for ipu in range(4)
    )
    assumptions = (f"loop `{LONG}`: counted once",)
    report = Report("train", system_of("Bow Pod16"), 4, tuple(rows), memories, assumptions, overlaps_host=False)
    timeline = Timeline(7e-3, micro_batches=8, passes=2, bubble=0.2, shown=4, tasks=tasks)
    return dataclasses.replace(report, timeline=timeline)


def precision_report():
    """Returns a report on layers and weights with long names."""
    values = np.geomspace(2.0**-30, 2.0**20, 200, dtype=np.float32)
    with np.errstate(over="ignore"):
        figures = figures_of(values, values.astype(np.float16))
    kinds = {
        "activation": "",
        "gradient of weight": "multi_head_attention_kernel",
        "weight": "kernel",
        "update": "kernel",
    }
    rows = tuple(
        TensorRow(layer, kind, name, (figures,) * 3, 0.5)
        for layer in ("ENCODER_BLOCK_0_MULTI_HEAD_ATTENTION_OUTPUT", "encoder_block_1_normalization_layer", "dense")
        for kind, name in kinds.items()
    )
    return PrecisionReport("transformer", "/device:IPU:0", 1.0, rows, ((1.25, 1.5),) * 3)


@functools.cache
def page_named(name):
    if name == "precision":
        return page_of(precision_report())
    report = machine_report()
    before = [dataclasses.replace(report, operations=report.operations[:2])] if name == "comparison" else []
    return report_page(report, *before)


# The pages are measured in frames, because windows of a browser have a minimum width.
MEASURE = """<title></title><script>
addEventListener("load", () => {
  const measure = frame => {
    const page = frame.contentDocument, root = page.documentElement, found = {sideways: root.scrollWidth - root.clientWidth};
    page.querySelectorAll("details").forEach(each => each.open = true);
    const style = each => frame.contentWindow.getComputedStyle(each);
    const words = each => `${each.tagName} of ${each.closest("[id]")?.id}: ${each.textContent.slice(0, 40)}`;
    const seen = [...page.querySelectorAll("body *")].filter(
      each => each.checkVisibility() && (!each.closest("svg") || ["svg", "text"].includes(each.tagName)));
    found.down = seen.filter(each => style(each).overflowY !== "visible" && each.scrollHeight > each.clientHeight + 1);
    found.aside = seen.filter(each => style(each).overflowX !== "visible" && each.scrollWidth > each.clientWidth + 1);
    found.cut = seen.filter(each => {
      const box = each.parentElement.closest("svg") ?? each.parentElement.closest(".scrolls, .card, .figures div");
      if (!box || style(box).overflowX === "auto") return false;
      const inner = each.getBoundingClientRect(), outer = box.getBoundingClientRect();
      return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1;
    });
    for (const name of ["down", "aside", "cut"]) found[name] = found[name].map(words);
    found.last = page.querySelector(".sortable th:last-child")?.getBoundingClientRect().right ?? 0;
    const filter = page.querySelector("input[type=search]");
    filter.value = "no such layer";
    filter.dispatchEvent(new Event("input"));
    const rows = [...filter.closest(".card").querySelectorAll("tbody tr")];
    found.left = rows.filter(row => row.checkVisibility()).map(words);
    return found;
  };
  document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(measure));
});
</script>"""


def measured(page, tmp_path, *widths):
    """Returns the measurements of a page by a browser, for each width."""
    frames = "".join(f'<iframe style="width:{width}px" srcdoc="{html.escape(page)}"></iframe>' for width in widths)
    path = tmp_path / "frames.html"
    path.write_text(f"<!doctype html>{frames}{MEASURE}", encoding="utf-8")
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(html.unescape(re.findall(r"<title>(.*?)</title>", completed.stdout)[-1]))


# In an earlier version, the last column of the operations was beyond the edge of its panel, which scrolled.
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
@pytest.mark.parametrize("name", ["machine", "comparison", "precision"])
def test_nothing_is_cut_and_the_page_alone_scrolls(name, tmp_path):
    desk, tablet, phone = measured(page_named(name), tmp_path, 1280, 1024, 390)
    for layout in (desk, tablet, phone):
        assert layout["sideways"] == 0
        assert layout["cut"] == []
        assert layout["down"] == []
        assert layout["left"] == []  # By the filter.
    assert desk["aside"] == tablet["aside"] == []
    assert desk["last"] < 1280
    assert all(element.startswith(("DIV of", "FIGURE of")) for element in phone["aside"])


@pytest.mark.parametrize("name", ["machine", "comparison", "precision"])
def test_no_panel_has_a_height_of_its_own_and_wide_tables_have_a_box(name):
    page = page_named(name)
    assert not re.search(r"max-height|overflow: *(auto|scroll)|overflow-y", page)
    assert re.findall(r"@media [^{]*\{ [^{]*\{ overflow-x: auto; \} \}", page) == re.findall(r".*overflow-x.*", page)
    assert all(box == '<div class="scrolls">' for box in re.findall(r'(<[^>]*>)<table class="sortable">', page))


def test_a_name_that_is_too_long_keeps_what_the_tensor_is():
    page = page_named("precision")
    for shown in ("ENCODER_BLOCK_...TENTION_OUTPUT: activation", "encoder_bloc...zation_layer: weight kernel"):
        assert f">{shown}<title>" in page
    assert ">dense: activation<title>" in page
