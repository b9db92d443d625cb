"""The examples of operations, of programs as files and of work of the host print what they claim."""

import json
import os
import re


def test_packed_sequences_are_computed_without_their_padding(run_example):
    assert run_example("packed_sequences") == [
        "[0.0, 4.0, 0.0, 0.0]",
        "[64.0, 100.0, 144.0, 0.0]",
        "[256.0, 0.0, 0.0, 0.0]",
        "below 1, 10, 100, and from there on: [1, 3, 2, 6]",
    ]


def test_host_embedding_learns_which_word_follows_which(run_example):
    assert run_example("host_embedding") == ["a table of 2 GiB", "the loss fell: True", "followers: [1, 2, 3, 0]"]


def test_old_layers_learn_in_a_session(run_example):
    assert run_example("old_layers") == [
        "variables: popnn_dynamic_lstm/kernel, popnn_dynamic_lstm/biases",
        "the loss halved: True",
        "eight bits cost at most a sixteenth of the largest weight: True",
    ]


def test_layers_share_their_code_and_train_as_without(run_example):
    assert run_example("functions") == ["the same loss and gradients: True"]


def test_second_start_finds_the_executable(run_example):
    first, second = run_example("second_start")
    assert first == "30.0 {'ExecutablesStored': 1, 'ExecutablesLoaded': 0}"
    assert second == "30.0 {'ExecutablesStored': 0, 'ExecutablesLoaded': 1}"


def test_script_of_the_sdk_runs_through_the_door(run_example):
    assert run_example("old_code") == ["Nothing is missing.", "gelu(1) = 0.841"]


def test_application_answers_with_the_weights_that_it_was_started_with(run_example):
    assert run_example("application") == [
        "inputs: scale (), weights (2, 2)",
        "streamed_inputs: x (2,)",
        "streamed_outputs: y (2,)",
        "answers: [0.0, 10.0] to [70.0, 80.0]",
    ]


def test_custom_operations_moves_by_the_gradient_of_the_emulation(run_example):
    # From (3, 4), at a distance of 5, 19 steps of 0.25 leave 0.25.
    assert run_example("custom_operations") == ["after 19 steps of a quarter: [0.15 0.2 ]", "squares: [0.02 0.04]"]


def test_serving_answers_with_the_trained_weights(run_example):
    assert run_example("serving") == ["y = 5.50", "stages: [1. 4.]"]


def test_changing_optimizer_goes_on_with_another_momentum_and_the_same_program(run_example, read_line):
    *runs, traced = run_example("changing_optimizer")
    losses = [float(*read_line(r"momentum \S+: loss (\S+)", run)) for run in runs]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 2 * losses[-1]
    assert traced == "traced 1 time(s), for the IPU: True"


def test_observing_prints_its_metrics_and_writes_a_trace(run_example, tmp_path):
    *report, waited, _ = run_example("observing", "--steps", "5", "--trace", str(tmp_path / "trace.json"))
    assert "Metric: RunTime" in report
    assert report[report.index("Counter: InfeedElements") + 1] == "  Value: 5"
    assert re.fullmatch(r"5 steps waited \d+ times for data: \d+% of the run", waited)
    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert "run of program" in names


def test_host_work_prints_looks_up_calls_cpp_and_ends_where_a_check_does_not_hold(run_example, tmp_path):
    stderr = os.dup(2)  # TensorFlow prints past Python.
    with (tmp_path / "printed").open("w+") as file:
        os.dup2(file.fileno(), 2)
        try:
            total, ended = run_example("host_work")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        printed = file.read()
    assert total == "the first replica's total: 12.0"
    assert re.fullmatch(r"the run ended: \[the total is too high\] .* \[1[24]\] .* \[10\]", ended)
    for replica, (totals, words) in enumerate((([4, 8, 12], '"one" "three"'), ([7, 14, 21], '"three" "seventeen"'))):
        assert list(map(int, re.findall(rf"replica {replica}: total: (\d+)", printed)))[:3] == totals
        assert printed.count(f"replica {replica}: step 2 has [{words}]\n") >= 1
