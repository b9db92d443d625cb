"""The command `pipeline`, without any model."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tensorflow_ipu.cli import plans
from tensorflow_ipu.pipelining import (
    Liveness,
    StageCost,
    parallel_phases_plan,
    pipeline_plan,
    plan_cost,
    plan_text,
    serial_phases_plan,
)


def test_it_prints_the_plan_and_its_figures(capsys):
    assert plans.main(["--stages", "4", "--micro-batches", "8"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(plan_text(pipeline_plan(4, 8)))
    assert "time 33.5, 4.1875 a micro-batch; utilisation 73.1%, bubble 26.9%" in said


@pytest.mark.parametrize("words", [["--help"], ["--stages", "4", "--micro-batches", "8"]])
def test_it_imports_no_tensorflow(words, tmp_path):
    run = [sys.executable, "-X", "importtime", "-m", "tensorflow_ipu", "pipeline", *words]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "tensorflow_ipu.cli.plans" in imported
    assert not {name for name in imported if name.split(".")[0] in ("tensorflow", "keras")}


def test_it_is_a_command_of_the_package(capsys):
    from tensorflow_ipu.__main__ import main

    assert main(["pipeline", "--stages", "2", "--micro-batches", "4"]) == 0
    assert capsys.readouterr().out.startswith("Grouped: 2 stages on 2 IPUs")


def test_a_mapping_tells_the_number_of_stages_and_their_parts(capsys):
    assert plans.main(["--mapping", "0,1+2,2,3", "--micro-batches", "8"]) == 0
    assert capsys.readouterr().out.startswith(plan_text(pipeline_plan(4, 8, device_mapping=[0, [1, 2], 2, 3])))


def test_bytes_are_told_for_each_ipu(capsys):
    words = ["--stages", "2", "--micro-batches", "4", "--activation-bytes", "4MiB,1k", "--weight-bytes", "10"]
    assert plans.main(words) == 0
    said = capsys.readouterr().out
    assert "IPU 0: stages A; stash 12.0 MiB, in all 12.0 MiB" in said
    assert "IPU 1: stages B; stash 1.0 KiB, in all 1.0 KiB" in said


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        (["--schedule", "serial-phases"], serial_phases_plan([0, 0, 0])),
        (
            ["--schedule", "serial-phases", "--liveness", "forward"],
            serial_phases_plan([0, 0, 0], liveness=Liveness.OffChipAfterFwd),
        ),
        (["--schedule", "parallel-phases", "--inference"], parallel_phases_plan([0, 1, 0], training=False)),
        (["--schedule", "parallel-phases", "--mapping", "0+2,1+3,0+2"], parallel_phases_plan([[0, 2], [1, 3], [0, 2]])),
    ],
)
def test_phases(capsys, words, plan):
    assert plans.main(["--stages", "3", *words]) == 0
    assert capsys.readouterr().out.startswith(plan_text(plan))


def test_sharded_models_recompute(capsys):
    assert plans.main(["--stages", "2", "--schedule", "sharded", "--recompute"]) == 0
    assert capsys.readouterr().out.startswith("Sharded: 2 stages on 2 IPUs, 1 micro-batch, training, Recompute")


def test_batch_serialization(capsys):
    words = ["--stages", "2", "--micro-batches", "2", "--schedule", "sequential", "--batch-serialization", "3"]
    assert plans.main(words) == 0
    assert "Sequential: 2 stages on 1 IPU, 6 micro-batches" in capsys.readouterr().out


def test_it_draws_and_traces(capsys, tmp_path):
    picture, trace = tmp_path / "plan.png", tmp_path / "plan.json"
    words = ["--stages", "2", "--micro-batches", "4", "--png", str(picture), "--trace", str(trace)]
    assert plans.main(words) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(trace.read_text())["traceEvents"]
    assert f"picture: {picture}" in capsys.readouterr().out


def test_it_names_the_best(capsys, tmp_path):
    picture = tmp_path / "best.png"
    words = ["--stages", "4", "--micro-batches", "16", "--times", "1,1,1,3", "--ipus", "2", "--compare"]
    assert plans.main([*words, "--png", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "Grouped on [0, 0, 0, 1] takes" in said
    assert picture.exists()


def test_with_a_machine_times_are_seconds_and_exchanges_are_known(capsys, tmp_path):
    trace = tmp_path / "plan.json"
    words = ["--stages", "2", "--micro-batches", "8", "--times", "1.5ms,1ms", "--input-bytes", "8MiB"]
    assert plans.main([*words, "--machine", "GC200", "--trace", str(trace)]) == 0
    said = capsys.readouterr().out
    costs = [StageCost(forward=one, update=one / 2, input_bytes=8 * 2**20) for one in (1.5e-3, 1e-3)]
    cost = plan_cost(pipeline_plan(2, 8), costs, machine="GC200")
    assert f"time {1e3 * cost.time:.3g} ms, {1e3 * cost.time_per_micro_batch:.3g} ms a micro-batch" in said
    assert f"exchanges {cost.exchange_share:.1%}" in said
    assert cost.exchange_share > 0
    slices = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(1e6 * cost.time)
    assert plans.main([*words, "--machine", "GC200", "--compare"]) == 0
    assert "ms a micro-batch" in capsys.readouterr().out


def test_a_comparison_tells_sizes_only_where_some_were_given(capsys):
    words = ["--stages", "2", "--micro-batches", "4", "--compare"]
    assert plans.main(words) == 0
    said = capsys.readouterr().out
    assert "memory" not in said
    assert " B " not in said
    assert plans.main([*words, "--activation-bytes", "4MiB"]) == 0
    assert re.search(r"stash +memory\n.* MiB .* MiB ", capsys.readouterr().out)


def test_a_comparison_in_which_none_fits_fails(capsys):
    words = [
        "--stages",
        "2",
        "--micro-batches",
        "4",
        "--compare",
        "--weight-bytes",
        "1GiB",
        "--bytes-per-ipu",
        "600MiB",
    ]
    assert plans.main(words) == 2
    assert "none can be run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--micro-batches", "4"], "neither `--stages` nor `--mapping`"),
        (["--stages", "2"], "`--micro-batches` is missing"),
        (["--stages", "2", "--micro-batches", "3"], "must be a multiple of 4, but is 3; use 4"),
        (["--stages", "3", "--mapping", "0,1", "--micro-batches", "4"], "`--mapping` has 2 items"),
        (
            ["--stages", "2", "--micro-batches", "4", "--times", "1,2,3"],
            "`--times` has 3 values, but there are 2 stages",
        ),
        (["--stages", "2", "--schedule", "serial-phases", "--recompute"], "`--recompute` is for pipelines"),
        (
            ["--stages", "2", "--micro-batches", "4", "--liveness", "always"],
            "`--liveness` is for `--schedule serial-phases`",
        ),
        (["--stages", "2", "--schedule", "sharded", "--batch-serialization", "2"], "`--batch-serialization` is for"),
        (["--stages", "2", "--micro-batches", "4", "--machine", "GC200"], "say what stages take by `--times`"),
        (
            ["--stages", "2", "--micro-batches", "4", "--machine", "GC200", "--times", "1", "--transfer-times", "1"],
            "`--transfer-times` is for plans without `--machine`",
        ),
        (["--stages", "2", "--micro-batches", "4", "--machine", "GC7", "--times", "1ms"], "GC7"),
        (["--stages", "2", "--micro-batches", "4", "--png", "/nowhere/plan.png"], "/nowhere/plan.png"),
    ],
)
def test_what_cannot_be_is_told_without_a_traceback(capsys, words, said):
    assert plans.main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--mapping", "0,x"], ["--times", "a"], ["--weight-bytes", "many"], ["--schedule", "x"]]
)
def test_a_malformed_command_line_ends_with_the_usage(capsys, words):
    with pytest.raises(SystemExit):
        plans.main(words)
    assert "usage: python -m tensorflow_ipu pipeline" in capsys.readouterr().err
