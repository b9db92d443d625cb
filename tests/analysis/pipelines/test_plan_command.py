"""The command `pipeline`, which works without a model."""

import json
import re
import subprocess
import sys

import pytest

from tensorflow_ipu import pipelining
from tensorflow_ipu.cli import pipeline
from tensorflow_ipu.pipelining import Liveness, StageCost, parallel_phases_plan, pipeline_plan, serial_phases_plan


@pytest.fixture
def said(capsys):
    """Returns a function that runs the command and returns its output: `said("--stages 4 ...", code=0)`."""

    def run(words, code=0):
        assert pipeline.main(words.split()) == code
        return capsys.readouterr().out

    return run


PHASES = "--stages 3 --schedule"


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ("--stages 4 --micro-batches 8", pipeline_plan(4, 8)),
        ("--mapping 0,1+2,2,3 --micro-batches 8", pipeline_plan(4, 8, device_mapping=[0, [1, 2], 2, 3])),
        (f"{PHASES} serial-phases", serial_phases_plan([0, 0, 0])),
        (
            f"{PHASES} serial-phases --liveness forward",
            serial_phases_plan([0, 0, 0], liveness=Liveness.OffChipAfterFwd),
        ),
        (f"{PHASES} parallel-phases --inference", parallel_phases_plan([0, 1, 0], training=False)),
        (f"{PHASES} parallel-phases --mapping 0+2,1+3,0+2", parallel_phases_plan([[0, 2], [1, 3], [0, 2]])),
    ],
)
def test_it_prints_the_plan(said, words, plan):
    assert said(words).startswith(pipelining.plan_text(plan))


def test_it_prints_figures_and_bytes_and_is_a_command_of_the_package(said, capsys):
    figures = "time 33.5, 4.1875 a micro-batch; utilisation 73.1%, bubble 26.9%"
    assert figures in said("--stages 4 --micro-batches 8")
    sizes = said("--stages 2 --micro-batches 4 --activation-bytes 4MiB,1k --weight-bytes 10")
    assert "IPU 0: stages A; stash 12.0 MiB, in all 12.0 MiB" in sizes
    assert "IPU 1: stages B; stash 1.0 KiB, in all 1.0 KiB" in sizes
    sharded = said("--stages 2 --schedule sharded --recompute")
    assert sharded.startswith("Sharded: 2 stages on 2 IPUs, 1 micro-batch, training, Recompute")
    serialized = said("--stages 2 --micro-batches 2 --schedule sequential --batch-serialization 3")
    assert "Sequential: 2 stages on 1 IPU, 6 micro-batches" in serialized

    from tensorflow_ipu.__main__ import main

    assert main(["pipeline", "--stages", "2", "--micro-batches", "4"]) == 0
    assert capsys.readouterr().out.startswith("Grouped: 2 stages on 2 IPUs")


def test_it_imports_no_tensorflow(tmp_path):
    words = ["pipeline", "--stages", "4", "--micro-batches", "8"]
    run = [sys.executable, "-X", "importtime", "-m", "tensorflow_ipu", *words]
    completed = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    imported = {line.rpartition("|")[2].strip() for line in completed.stderr.splitlines()}
    assert "tensorflow_ipu.analysis.pipelines.comparison" in imported  # What `import_module` loads is not listed.
    assert not {name for name in imported if name.split(".")[0] in ("tensorflow", "keras")}


def test_it_draws_and_traces_and_names_the_best(said, tmp_path):
    picture, trace, best = tmp_path / "plan.png", tmp_path / "plan.json", tmp_path / "best.png"
    drawn = said(f"--stages 2 --micro-batches 4 --png {picture} --trace {trace}")
    assert f"picture: {picture}" in drawn
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(trace.read_text())["traceEvents"]
    compared = said(f"--stages 4 --micro-batches 16 --times 1,1,1,3 --ipus 2 --compare --png {best}")
    assert "Grouped on [0, 0, 0, 1] takes" in compared
    assert best.exists()
    words = "--stages 2 --micro-batches 4 --compare"
    without_sizes = said(words)
    assert "memory" not in without_sizes
    assert " B " not in without_sizes
    assert re.search(r"stash +memory\n.* MiB .* MiB ", said(f"{words} --activation-bytes 4MiB"))
    assert "none can be run" in said(f"{words} --weight-bytes 1GiB --bytes-per-ipu 600MiB", code=2)


def test_with_a_machine_times_are_seconds_and_exchanges_are_known(said, tmp_path):
    trace = tmp_path / "plan.json"
    words = "--stages 2 --micro-batches 8 --times 1.5ms,1ms --input-bytes 8MiB --machine GC200"
    text = said(f"{words} --trace {trace}")
    costs = [StageCost(forward=seconds, update=seconds / 2, input_bytes=8 * 2**20) for seconds in (1.5e-3, 1e-3)]
    cost = pipelining.plan_cost(pipeline_plan(2, 8), costs, machine="GC200")
    assert f"time {1e3 * cost.time:.3g} ms, {1e3 * cost.time_per_micro_batch:.3g} ms a micro-batch" in text
    assert f"exchanges {cost.exchange_share:.1%}" in text
    assert cost.exchange_share > 0
    slices = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(1e6 * cost.time)
    assert "ms a micro-batch" in said(f"{words} --compare")


TWO, OF_GC200 = "--stages 2 --micro-batches 4", "--stages 2 --micro-batches 4 --machine GC200"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--micro-batches 4", "neither `--stages` nor `--mapping`"),
        ("--stages 2", "`--micro-batches` is missing"),
        ("--stages 2 --micro-batches 3", "must be a multiple of 4, but is 3; use 4"),
        ("--stages 3 --mapping 0,1 --micro-batches 4", "`--mapping` has 2 items"),
        (f"{TWO} --times 1,2,3", "`--times` has 3 values, but there are 2 stages"),
        ("--stages 2 --schedule serial-phases --recompute", "`--recompute` is for pipelines"),
        (f"{TWO} --liveness always", "`--liveness` is for `--schedule serial-phases`"),
        ("--stages 2 --schedule sharded --batch-serialization 2", "`--batch-serialization` is for"),
        (OF_GC200, "set `--times` of the stages"),
        (f"{OF_GC200} --times 1 --transfer-times 1", "`--transfer-times` is for plans without `--machine`"),
        (f"{TWO} --machine GC7 --times 1ms", "GC7"),
        (f"{TWO} --png /nowhere/plan.png", "/nowhere/plan.png"),
    ],
)
def test_what_cannot_be_is_told_without_a_traceback(capsys, words, told):
    assert pipeline.main(words.split()) == 2
    assert told in capsys.readouterr().err


def test_a_malformed_command_line_ends_with_the_usage(capsys):
    for words in ("--mapping 0,x", "--times a", "--weight-bytes many", "--schedule x"):
        with pytest.raises(SystemExit):
            pipeline.main(words.split())
        assert "usage: python -m tensorflow_ipu pipeline" in capsys.readouterr().err
