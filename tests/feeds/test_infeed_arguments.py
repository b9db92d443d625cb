"""The arguments of `IPUInfeedQueue`: what is accepted, and what is refused in which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

ONES = tf.data.Dataset.from_tensors(np.float32(1)).repeat()


@pytest.mark.parametrize("ordinal", ["0", 0.0, True, np.int64(0)])
def test_device_ordinal_must_be_an_int(ordinal: Any) -> None:
    with pytest.raises(ValueError, match=r"Device ordinal must be an integer: `device_ordinal` is"):
        ipu.IPUInfeedQueue(ONES, device_ordinal=ordinal)


def test_device_ordinal_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match=r"Device ordinal must be >= 0: `device_ordinal` is -1"):
        ipu.IPUInfeedQueue(ONES, device_ordinal=-1)


def test_device_is_the_first_one_without_an_ordinal_or_a_strategy() -> None:
    assert ipu.IPUInfeedQueue(ONES).device == "/device:IPU:0"


def test_device_is_that_of_the_ordinal() -> None:
    assert ipu.IPUInfeedQueue(ONES, device_ordinal=3).device == "/device:IPU:3"


def test_device_is_that_of_the_strategy_in_whose_scope_the_queue_is_made() -> None:
    config = ipu.IPUConfig()
    config.auto_select_ipus = [1, 1]
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy("/device:IPU:1")
    with strategy.scope():
        assert ipu.IPUInfeedQueue(ONES).device == "/device:IPU:1"
        assert ipu.IPUInfeedQueue(ONES, device_ordinal=0).device == "/device:IPU:0"
    assert ipu.IPUInfeedQueue(ONES).device == "/device:IPU:0"


@pytest.mark.parametrize(("depth", "used"), [(None, 3), (1, 1), (7, 7), (255, 255)])
def test_prefetch_depth_is_three_where_it_is_none(depth: int | None, used: int) -> None:
    assert ipu.IPUInfeedQueue(ONES, prefetch_depth=depth).prefetch_depth == used


@pytest.mark.parametrize(
    ("depth", "words"),
    [
        (0, "prefetch_depth must be greater than zero, but it is 0"),
        (-1, "prefetch_depth must be greater than zero, but it is -1"),
        (256, "prefetch_depth must be less than 256, but it is 256"),
        ("3", "`prefetch_depth` must be an integer, but it is '3'"),
        (2.0, "`prefetch_depth` must be an integer, but it is 2.0"),
        (True, "`prefetch_depth` must be an integer, but it is True"),
    ],
)
def test_prefetch_depth_out_of_range_is_refused(depth: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ipu.IPUInfeedQueue(ONES, prefetch_depth=depth)


def test_optimise_latency_must_be_a_bool() -> None:
    with pytest.raises(TypeError, match=r"`optimise_latency` must be True or False, but is 1"):
        ipu.IPUInfeedQueue(ONES, optimise_latency=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [[1, 2], None, tf.zeros([3]), iter(ONES)])
def test_dataset_must_be_a_dataset(value: Any) -> None:
    with pytest.raises(TypeError, match=r"`dataset` must be a `tf.data.Dataset`"):
        ipu.IPUInfeedQueue(value)


@pytest.mark.parametrize("names", [("foo",), ("depth", "feed_names")])
def test_argument_by_an_unknown_name_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(
        TypeError, match=f"no argument {', '.join(f'`{name}`' for name in names)}; it has.*prefetch_depth"
    ):
        ipu.IPUInfeedQueue(ONES, **dict.fromkeys(names, 1))


def test_arguments_of_earlier_releases_say_nothing() -> None:
    assert ipu.IPUInfeedQueue(ONES, feed_name="mine", replication_factor=2, _internal_id="x").prefetch_depth == 3


def test_names_of_queues_are_unique_in_the_process() -> None:
    names = {ipu.IPUInfeedQueue(ONES)._name for _ in range(5)} | {ipu.IPUOutfeedQueue()._name for _ in range(5)}
    assert len(names) == 10


@pytest.mark.parametrize("options", [{}, {"prefetch_depth": 1}, {"prefetch_depth": 255}, {"optimise_latency": True}])
def test_options_that_tune_transfers_change_no_result(
    options: dict[str, Any], echo: Any, infeed_of: Any, numbers: Any
) -> None:
    infeed, outfeed = infeed_of(numbers(50), **options), ipu.IPUOutfeedQueue()
    echo(infeed, outfeed, 50)
    np.testing.assert_array_equal(outfeed.dequeue(), np.arange(50))


def test_all_faults_of_a_dataset_are_named_together() -> None:
    dataset = tf.data.Dataset.from_tensors((tf.zeros([4, 2]), (1, 2))).batch(3)
    with pytest.raises(ValueError, match=r"(?s)Nested list/tuple.*\(None, 4, 2\) is not fully defined.*drop_remainder"):
        ipu.IPUInfeedQueue(dataset)
