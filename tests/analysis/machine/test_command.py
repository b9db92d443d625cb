"""The command `report`: prints a saved report, compares two, and names the error of a file."""

import json
import subprocess
import sys

import pytest

from tensorflow_ipu.cli import report as command
from tensorflow_ipu.machine import Memory, OperationTime, Report, compare_reports, system_of

MIB = 2**20


@pytest.fixture
def report():
    """Returns a function that creates a report with a product of some seconds, and data of some MiB."""

    def make(seconds=1e-3, data=100, machine="GC200", name="MatMul"):
        rows = OperationTime(name, "dot", "f32[4]", 10, seconds, flops=1e9), OperationTime("in", "infeed", "f32[4]", 10)
        memory = Memory(MIB, 0, data * MIB, MIB, 2 * MIB, 897 * MIB)
        return Report("train", system_of(machine), 1, rows, (memory,), (), overlaps_host=False)

    return make


@pytest.fixture
def saved(report, tmp_path):
    """Returns a function that saves such a report and returns its path: `saved("a.json", ...)`."""

    def save(name, **fields):
        path = tmp_path / name
        report(**fields).save(path)
        return str(path)

    return save


def test_one_is_shown_again_and_two_are_compared(report, saved, capsys):
    assert command.main([saved("a.json")]) == 0
    assert capsys.readouterr().out == f"{report()}\n"
    after = {"seconds": 2e-3, "data": 1300, "machine": "Bow"}
    assert command.main([saved("a.json"), saved("b.json", **after)]) == 0
    output = capsys.readouterr().out
    assert output == f"{compare_reports(report(), report(**after))}\n"
    rows = {line[:50].strip(): line[50:].split() for line in output.splitlines()}
    assert rows["time of a step"] == ["100", "us", "200", "us", "+100%"]
    assert rows["compute"] == ["100", "us", "200", "us", "+100%"]
    assert rows["other data at the peak"] == ["100", "MiB", "1.3", "GiB", "x", "13"]
    assert rows["arithmetic of a step, FLOP"] == ["100", "M", "100", "M"]
    assert rows["MatMul (dot)"] == ["100", "us", "200", "us", "+100%"]
    assert "before:  train on GC200 in IPU-M2000: fits" in output
    assert "after:   train on Bow in Bow-2000: does not fit" in output
    assert "exchange" not in output


def test_figures_are_json_for_other_programs(report, saved, capsys):
    assert command.main([saved("a.json"), "--json"]) == 0
    assert Report.from_dict(json.loads(capsys.readouterr().out)) == report()
    assert command.main([saved("a.json"), saved("b.json", seconds=2e-3), "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)
    assert changes["figures"][0] == {
        "name": "time of a step",
        "before": pytest.approx(1e-4),
        "after": pytest.approx(2e-4),
    }
    assert [operation["name"] for operation in changes["operations"]] == ["MatMul (dot)"]


def test_layers_that_were_numbered_anew_are_the_same_and_what_is_in_one_alone_is_told(report):
    text = compare_reports(report(name="while/dense_1/MatMul_1"), report(2e-3, name="while/dense_4_2/MatMul_1"))
    assert text.splitlines()[-1].split() == ["dense/MatMul_1", "(dot)", "100", "us", "200", "us", "+100%"]
    text = compare_reports(report(), report(name="Conv"))
    assert "MatMul (dot)" in text
    assert text.count("gone") == text.count("new") == 1


def test_a_page_is_written_of_one_or_of_both(saved, tmp_path, capsys):
    page = tmp_path / "out.html"
    assert command.main([saved("a.json"), "--html", str(page)]) == 0
    assert 'id="comparison"' not in page.read_text(encoding="utf-8")
    assert command.main([saved("a.json"), saved("b.json", data=200), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert 'id="comparison"' in text
    assert "+100%" in text
    assert command.main([saved("a.json"), "--html", str(tmp_path / "out.txt")]) == 2
    assert "must end in `.html`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("hello", "is no report: it is no JSON"),
        ("[]", "is no report: it holds no object"),
        ('{"schema": 1}', "the report has schema 1, but this version of the package reads schema"),
        ('{"schema": 2}', "this is no report: it has no '"),
        ('{"schema": 1, "loss_scale": 1, "rows": []}', "is a report of float16; `python -m tensorflow_ipu precision "),
        ('{"traceEvents": []}', "is a trace; open it at https://ui.perfetto.dev"),
    ],
)
def test_a_file_that_is_no_report_is_named(saved, tmp_path, capsys, content, message):
    path = tmp_path / "b.json"
    if content is not None:
        path.write_text(content)
    assert command.main([saved("a.json"), str(path)]) == 2
    output = capsys.readouterr()
    assert f"`{path}`" in output.err
    assert message in output.err
    assert not output.out


@pytest.mark.parametrize(("options", "others"), [((), {"matplotlib", "jinja2"}), (("--html", "a.html"), set())])
def test_it_imports_no_tensorflow(saved, tmp_path, options, others):
    run = [sys.executable, "-X", "importtime", "-m", "tensorflow_ipu", "report", saved("a.json"), *options]
    completed = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    assert completed.stdout.startswith("train on GC200")
    imported = {line.rpartition("|")[2].strip() for line in completed.stderr.splitlines()}
    assert "tensorflow_ipu.machine" in imported
    assert not {name for name in imported if name.split(".")[0] in {"tensorflow", "keras", *others}}
