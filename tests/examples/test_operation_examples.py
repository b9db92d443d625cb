"""The examples of operations print what they claim."""

from __future__ import annotations


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
