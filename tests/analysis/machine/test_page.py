"""The pages of reports: all panels in one self-contained file, which works in a browser."""

import dataclasses
import html
import re
import shutil
import subprocess
import sys

import pytest

from tensorflow_ipu import machine
from tensorflow_ipu.machine import Memory, NotAsked, OperationTime, Recipe, Report, Suggestion, Suggestions, system_of

PANELS = ["assumptions", "memory", "time", "liveness", "host", "timeline", "operations"]
MIB = 2**20
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def made():
    """Returns a report on a loop of ten steps with a feed, a product, and names that HTML must escape."""
    rows = (
        OperationTime("while/IpuInfeedDequeue", "infeed", "(f32[16,784])", 10, host=2e-3, host_bytes=10 * 16 * 784 * 4),
        OperationTime(
            "a<b>/MatMul", "dot", "f32[16,10]", 10, 1e-3, 5e-4, 1e-4, flops=1e9, plan="4 x 8 x 1", source="t.py:3"
        ),
        OperationTime("a<b>/Relu", "maximum", "f32[16,10]", 10, 1e-4, sync=1e-5),
        OperationTime("sum", "all-reduce", "f32[10]", 10, links=3e-4),
    )
    sizes = (90 * MIB, 10, *(size * MIB for size in (200, 20, 60, 897)))
    liveness = ((0, 5 * MIB), (3, 200 * MIB), (7, 20 * MIB))
    memory = Memory(*sizes, largest=(("a<b>/MatMul", 150 * MIB),), liveness=liveness)
    assumptions = ("loop `while`: counted <once>",)
    return Report("train <mine>", system_of("Bow Pod16"), 4, rows, (memory,), assumptions, overlaps_host=False)


@pytest.fixture
def pipelined(made):
    tasks = [
        machine.TaskTime(ipu, (n + ipu) * 1e-3, (n + ipu + 1) * 1e-3, kind, ipu, f"{ipu}{kind[0].upper()}{n}")
        for n in range(4)
        for ipu, kind in ((0, "forward"), (1, "backward"))
    ]
    timeline = machine.Timeline(5e-3, micro_batches=8, passes=2, bubble=0.2, shown=4, tasks=tuple(tasks))
    second = dataclasses.replace(made.memory, ipu=1, stash=300 * MIB)
    rows = (*made.operations, dataclasses.replace(made.operations[1], ipu=1, part="stage 1 backward"))
    return dataclasses.replace(made, operations=rows, memories=(made.memory, second), timeline=timeline)


def text_of(report, tmp_path):
    path = tmp_path / "report.html"
    report.save(path)
    return path.read_text(encoding="utf-8")


def test_a_page_has_all_panels_and_needs_nothing_beside_itself(made, tmp_path, read_page):
    text = text_of(made, tmp_path)
    page = read_page(text)
    assert not page.open
    assert [name for name in page.ids if name in PANELS] == PANELS
    assert len(set(page.ids)) == len(page.ids)
    assert all(address.startswith("#") for address in page.addresses)
    assert not re.search(r"https?://|url\((?!#)|@import", text)
    assert page.elements["svg"] == 3
    assert 'id="advice"' not in text
    assert len(text) < 300_000
    said = ("train &lt;mine&gt;", "a&lt;b&gt;/MatMul", "fits", "peak 290 MiB", "401 us", "t.py:3", "<code>while</code>")
    said += (">256 MiB<", ">200 us<", ">infeed</td>")  # Ticks are round numbers, and names of queues are hidden.
    for words in said:
        assert words in text
    assert "<mine>" not in text
    assert "#fe" not in re.sub(r'"#fe[0-9a-f]{4}fe"', "", text)  # No placeholder of a colour remains.


def test_a_pipeline_shows_its_plan_and_each_of_its_ipus(pipelined, tmp_path, read_page):
    text = text_of(pipelined, tmp_path)
    for words in (
        "A pass of 8 micro-batches, of which 4 are drawn: 5 ms, and the IPUs wait for each other in 20% of it.",
        "IPU 1, the fullest",
        ">0F0<",
        ">1B3<",
        "Liveness of IPU 1",
        "stage 1 backward",
    ):
        assert words in text
    assert read_page(text).elements["svg"] == 4


def test_advice_has_a_panel_where_there_is_any(made, tmp_path):
    given = (Suggestion("`io_tiles` of <64>", 2.0, 450 * MIB, "may fit"),)
    recipe = Recipe(given, "model.set_it(a < b)", left="no combination surely fits")
    advice = Suggestions(given, (NotAsked("<others>", "of `a`"),), recipe)
    text = text_of(dataclasses.replace(made, given_advice=advice), tmp_path)
    assert "&lt;others&gt;: of <code>a</code>" in text
    for words in ('id="advice"', "<code>io_tiles</code> of &lt;64&gt;", "x 2.00", '<td class="may-fit">may fit</td>'):
        assert words in text
    assert '<p>no combination surely fits</p><pre class="scrolls">model.set_it(a &lt; b)</pre>' in text


def test_a_report_of_nothing_is_a_page_and_what_is_alive_at_the_peak_is_folded(made, tmp_path, read_page):
    empty = dataclasses.replace(made.memory, liveness=(), largest=())
    text = text_of(dataclasses.replace(made, operations=(), memories=(empty,), assumptions=()), tmp_path)
    assert [name for name in read_page(text).ids if name in PANELS] == PANELS
    assert "<details>" not in text
    memory = dataclasses.replace(made.memory, largest=tuple((f"value{n}", MIB) for n in range(12)))
    text = text_of(dataclasses.replace(made, memories=(memory,)), tmp_path)
    shown, folded = text.split("<details><summary>4 more</summary>")
    assert "value7" in shown
    assert "temporary data of the operation at the peak" in shown
    assert "value8" not in shown
    assert "value11" in folded


def test_a_page_of_many_operations_stays_small(made, tmp_path):
    rows = [dataclasses.replace(made.operations[1], name=f"layer_{n}/with/a/long/name/MatMul") for n in range(6000)]
    points = tuple((index, index * MIB // 10) for index in range(400))
    memory = dataclasses.replace(made.memory, liveness=points)
    text = text_of(dataclasses.replace(made, operations=tuple(rows), memories=(memory,) * 16), tmp_path)
    assert len(text) < 2_000_000
    assert "6000 operations, of which 1500 are listed, by layer" in text


def test_without_matplotlib_a_page_has_its_tables_and_says_how_to_get_pictures(made, tmp_path, monkeypatch):
    with_pictures = text_of(made, tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = text_of(made, tmp_path)
    assert "<svg" not in text
    assert text.count("needs matplotlib: <code>pip install 'tensorflow-ipu[report]'</code>") == 3
    assert text.count("<table") == with_pictures.count("<table")


LOOK = """
<script>
addEventListener("load", () => {
  const heads = [...document.querySelectorAll("#operations th button")];
  const first = () => document.querySelector("#operations tbody tr").cells[0].textContent;
  const seen = [first()];
  for (const name of ["operation", "operation", "a run"]) {
    heads.find(head => head.textContent === name).click();
    seen.push(first());
  }
  const shown = () => [...document.querySelectorAll("#operations tbody tr")].filter(row => row.checkVisibility())
    .map(row => row.cells[0].textContent).join(", ");
  seen.push(shown());
  const filter = document.querySelector("#operations input");
  for (const words of ["RELU", "t.py", "nothing", ""]) {
    filter.value = words;
    filter.dispatchEvent(new Event("input"));
    seen.push(shown());
  }
  document.querySelector("#operations td button").click();
  seen.push(shown());
  const bar = document.querySelector("#memory svg path[style*='--always']");
  seen.push(getComputedStyle(bar).fill, getComputedStyle(document.body).backgroundColor);
  seen.push(document.documentElement.scrollWidth <= innerWidth ? "no wider" : "wider");
  document.title = seen.join("|");
});
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
@pytest.mark.parametrize(
    ("scheme", "always", "background"),
    [(1, "rgb(53, 97, 143)", "244, 245, 247"), (0, "rgb(91, 143, 198)", "18, 22, 28")],
)
def test_a_browser_sorts_and_shows_the_colours_of_its_scheme(pipelined, tmp_path, scheme, always, background):
    path = tmp_path / "look.html"
    path.write_text(text_of(pipelined, tmp_path) + LOOK, encoding="utf-8")
    command = [
        BROWSER,
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=500,900"),
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--blink-settings=preferredColorScheme={scheme}",
        *("--dump-dom", path.as_uri()),
    ]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (title,) = re.findall(r"<title>(.*?)</title>", completed.stdout)
    first, up, down, second, *shown, fill, page, width = html.unescape(title).split("|")
    assert (first, second, up, down) == ("a<b>", "a<b>", "a<b>", "in no layer")
    product = "a<b>/MatMul (stage 1 backward), a<b>/MatMul"
    folded = "a<b>, in no layer"
    assert shown == [
        folded,
        "a<b>, a<b>/Relu",
        f"a<b>, {product}",
        "",
        folded,
        f"a<b>, {product}, a<b>/Relu, in no layer",
    ]
    assert (fill, width) == (always, "no wider")
    assert page == f"rgb({background})"
