"""The helpers return the number of IPUs, detect the IPU Model and synthetic data, and set seeds."""

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu.config import (
    IPUConfig,
    SyntheticDataCategory,
    get_num_of_ipus_in_device,
    move_variable_initialization_to_cpu,
    reset_ipu_configuration,
    reset_ipu_seed,
    running_on_ipu_model,
    use_synthetic_data_for,
)
from tensorflow_ipu.config import _state as state
from tensorflow_ipu.errors import NotConfiguredError


def test_number_of_ipus_by_every_form_of_the_name(configure):
    assert get_num_of_ipus_in_device("/device:IPU:0") == 1
    assert get_num_of_ipus_in_device(f"/device:IPU:{environment.registered_devices() - 1}") == 1
    configure(2, 4)
    for name in ("/device:IPU:1", "/device:ipu:1", "IPU:1", "/IPU:1", "/job:localhost/replica:0/task:0/device:IPU:1"):
        assert get_num_of_ipus_in_device(name, device="/device:CPU:0") == 4
    assert get_num_of_ipus_in_device("/device:IPU") == 2


def test_device_that_does_not_exist_is_refused(refused):
    number = environment.registered_devices()
    with pytest.raises(NotConfiguredError, match=f"`/device:IPU:{number}` does not exist"):
        get_num_of_ipus_in_device(f"/device:IPU:{number}")
    IPUConfig().configure_ipu_system()
    refused(NotConfiguredError, "`/device:IPU:1` does not exist", get_num_of_ipus_in_device, "/device:IPU:1")
    refused(TypeError, "`ipu_device` must be a string.*but is 1", get_num_of_ipus_in_device, 1)
    with pytest.raises(TypeError, match="`device` must be the name of a host device"):
        get_num_of_ipus_in_device("/device:IPU:0", device=0)  # type: ignore[arg-type]
    for name in ("/device:GPU:0", "", "IPUS", "/device:IPU:x", "/device:IPU:-1", "XIPU:0"):
        refused(ValueError, f"`ipu_device={name}` names no IPU device", get_num_of_ipus_in_device, name)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("", ""),
        ("--x --use_ipu_model", ""),
        ("--use_synthetic_data", "Seed Infeed Outfeed HostEmbedding Parameters"),
        ("--synthetic_data_categories=infeed,host_embedding", "Infeed HostEmbedding"),
        ("--synthetic_data_categories='Seed, Outfeed'", "Seed Outfeed"),
    ],
)
def test_ipu_model_and_synthetic_data_follow_the_environment(monkeypatch, flags, names):
    monkeypatch.setenv(environment.FLAGS_VARIABLE, flags)
    assert running_on_ipu_model() is ("model" in flags)
    synthetic = [category.name for category in SyntheticDataCategory if use_synthetic_data_for(category)]
    assert " ".join(synthetic) == names
    for category in (1, "Infeed", None):
        with pytest.raises(TypeError, match=f"must be a `SyntheticDataCategory`, but is {category!r}"):
            use_synthetic_data_for(category)


def test_same_seed_gives_the_same_numbers_and_every_seed_of_64_bits_is_taken():
    def draw():
        return tf.random.uniform([4]).numpy()

    reset_ipu_seed(7)
    first, second = draw(), draw()
    reset_ipu_seed(7)
    np.testing.assert_array_equal(draw(), first)
    np.testing.assert_array_equal(draw(), second)
    for seed in (8, 0, -(2**63), 2**64 - 1):
        reset_ipu_seed(seed)
        recorded = state.device_seed(0)
        assert recorded is not None
        assert recorded.seed == seed
        assert not np.array_equal(draw(), first)


def test_seed_is_recorded_for_its_device_until_the_reset(configure):
    for ipus in ((1, 1), ()):
        configure(*ipus)
        reset_ipu_seed(np.int64(3), device=f"/device:IPU:{bool(ipus):d}", experimental_identical_replicas=True)
        assert state.device_seed(0) == (None if ipus else state.DeviceSeed(3, True))
        assert not ipus or state.device_seed(1) == state.DeviceSeed(3, True)
        reset_ipu_configuration()
        assert state.device_seed(0) is None


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"seed": 1.5}, TypeError, "`seed` must be a whole number, and `1.5` is not"),
        ({"seed": True}, TypeError, "`seed` must be a whole number, and `True` is not"),
        ({"seed": 2**64}, ValueError, "does not fit into 64 bits"),
        ({"seed": 1, "device": "/cpu:0"}, ValueError, "`device=/cpu:0` names no IPU device"),
        ({"seed": 1, "device": "/device:IPU:5"}, NotConfiguredError, "`/device:IPU:5` does not exist"),
        ({"seed": 1, "cpu_device": 1}, TypeError, "host device"),
        ({"seed": 1, "experimental_identical_replicas": 1}, TypeError, "`experimental_identical_replicas` must be"),
    ],
)
def test_seed_with_wrong_arguments_is_refused_and_not_recorded(arguments, kind, message, refused):
    refused(kind, message, reset_ipu_seed, **arguments)
    assert state.device_seed(0) is None


def test_move_variable_initialization_does_nothing_and_checks_its_graph():
    graph = tf.Graph()
    with graph.as_default():
        tf.constant(1)
    definition = graph.as_graph_def()
    move_variable_initialization_to_cpu()
    move_variable_initialization_to_cpu(graph)
    assert graph.as_graph_def() == definition
    with pytest.raises(TypeError, match="`graph` must be a `tf.Graph` or None, but is 3"):
        move_variable_initialization_to_cpu(3)
