"""Files of tensors: their content, imports and errors; and reports of benchmarks of datasets and infeeds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import feeds


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "tensors.bin")


def _arrays(file: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a file by name, as plain NumPy reads them."""
    with np.load(file) as archive:
        return {name: archive[name] for name in archive.files if name != "__metadata__"}


def _assert_written(file: str, expected: dict[str, np.ndarray]) -> None:
    arrays = _arrays(file)
    assert list(arrays) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)


def _metadata(file: str) -> dict[str, Any]:
    with np.load(file) as archive:
        return json.loads(str(archive["__metadata__"]))


@pytest.fixture
def images() -> tf.data.Dataset:
    pixels = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
    return tf.data.Dataset.from_tensor_slices(({"image": pixels}, np.arange(6, dtype=np.uint8)))


def test_dataset_becomes_one_array_a_tensor_stacked_over_elements(images, file):
    assert feeds.dataset_extractor(images, 4, file, "train") is None
    numbers = np.arange(16, dtype=np.float32).reshape(4, 2, 2)
    _assert_written(file, {"train/0/image": numbers, "train/1": np.arange(4, dtype=np.uint8)})
    assert _metadata(file) == {
        "format": "tensorflow_ipu.tensors",
        "version": 1,
        "kind": "dataset",
        "feed_name": "train",
        "num_elements": 4,
        "tensors": {
            "train/0/image": {"dtype": "float32", "shape": [4, 2, 2]},
            "train/1": {"dtype": "uint8", "shape": [4]},
        },
    }


def test_single_tensor_has_the_name_of_the_feed_or_its_own(numbers, file):
    named = tf.data.Dataset.from_tensors({"file": 1})
    for dataset, feed_name, name in ((numbers(1), "feed", "feed"), (numbers(1), "", "element"), (named, "", "file")):
        feeds.dataset_extractor(dataset, 1, file, feed_name)
        assert list(_arrays(file)) == [name]


@pytest.mark.parametrize("available", [0, 3])
def test_dataset_that_ends_too_early_leaves_the_old_file(numbers, file, available):
    Path(file).write_text("old")
    with pytest.raises(tf.errors.OutOfRangeError, match=f"ended after {available} elements, and `num_elements` is 4"):
        feeds.dataset_extractor(numbers(available), 4, file, "feed")
    assert Path(file).read_text() == "old"
    assert list(Path(file).parent.iterdir()) == [Path(file)]


def test_error_of_the_dataset_comes_as_it_is(numbers, file):
    failing = numbers(3).map(lambda n: tf.debugging.check_numerics(1.0 / tf.cast(n, tf.float32), "oops"))
    for dataset, message in ((failing, "oops"), (numbers(3).map(lambda n: tf.zeros([n + 1])), "batch")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            feeds.dataset_extractor(dataset, 3, file, "feed")


def test_graph_writes_at_once_or_with_each_run_and_tells_of_a_dataset_that_ends_too_early(numbers, file):
    with tf.Graph().as_default():
        feeds.export_dataset_to_file(numbers(5), file, 5, "feed")
        with tf.compat.v1.Session():
            feeds.export_dataset_to_file(numbers(5), file, 4, "feed")
        assert _arrays(file)["feed"].shape == (4,)
        Path(file).unlink()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        operation = feeds.dataset_extractor(numbers(5), 3, file, "feed")
        assert not Path(file).exists()
        for _ in range(2):
            session.run(operation)
            _assert_written(file, {"feed": np.arange(3, dtype=np.int32)})
            Path(file).unlink()
        for available in (0, 2):
            operation = feeds.dataset_extractor(tf.data.Dataset.range(available), 3, file, "feed")
            with pytest.raises(tf.errors.OutOfRangeError, match=f"after {available} elements, and `num_elements` is 3"):
                session.run(operation)


def test_dataset_and_infeed_go_to_a_file_at_once(images, numbers, file, strategy, infeed_of, take_one, capsys):
    for source in (images, ipu.IPUInfeedQueue(images)):
        with strategy.scope():
            feeds.export_dataset_to_file(source, file, 2, "feed")
        assert [array.shape for array in _arrays(file).values()] == [(2, 2, 2), (2,)]
        Path(file).unlink()
    queue = infeed_of(numbers(9))
    assert int(take_one(queue)) == 0
    feeds.export_dataset_to_file(queue, file, 9)
    assert int(take_one(queue)) == 1  # The queue keeps its position.
    capsys.readouterr()
    for print_stats in (True, False):
        feeds.dataset_extractor(numbers(3), 3, file, "feed", print_stats=print_stats)
        assert capsys.readouterr().err == (f"wrote 1 tensors, 12 bytes, to {file!r}\n" if print_stats else "")


def test_inputs_of_a_graph_or_by_name_go_to_a_file(file):
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        y = tf.multiply(x, 2.0, name="y")
        feeds.export_inputs_to_file([x, y], file, {x: [1.0, 2.0]})
    _assert_written(file, {"x": np.float32([1, 2]), "y": np.float32([2, 4])})
    assert _metadata(file)["kind"] == "inputs"
    inputs = [tf.TensorSpec([None, 2], tf.float32, "x"), keras.Input([3], dtype="int32", name="y")]
    feeds.export_inputs_to_file(inputs, file, {"x": [[1, 2]], "y": np.ones([4, 3], np.int64)})
    _assert_written(file, {"x": np.float32([[1, 2]]), "y": np.ones([4, 3], np.int32)})


def test_all_faults_of_inputs_are_reported_at_once(file):
    inputs = [
        tf.TensorSpec([2], tf.float32, "shape"),
        tf.TensorSpec([2], tf.int32, "type"),
        tf.TensorSpec([2], tf.float32, "absent"),
        tf.TensorSpec([2], tf.float32),
    ]
    message = r"`inputs` holds ''.*; .*`shape` has shape.*; .*`type` has type.*; .*`absent`"
    with pytest.raises(ValueError, match=message):
        feeds.export_inputs_to_file(inputs, file, {"shape": [1.0], "type": [0.5, 1.5], "": [1.0, 2.0]})
    assert not Path(file).exists()


@pytest.fixture
def weights() -> list[tf.Variable]:
    return [
        tf.Variable([[1.0, 2.0]], name="kernel"),
        tf.Variable(3, name="step"),
        tf.Variable(tf.constant([1.5, -2.0], tf.bfloat16), name="half"),
        tf.Variable([True, False], name="mask"),
    ]


def _blank(variables: list[tf.Variable]) -> list[tf.Variable]:
    return [tf.Variable(tf.zeros_like(variable), name=variable.name.removesuffix(":0")) for variable in variables]


def _assert_equal(variables: list[Any], expected_variables: list[Any]) -> None:
    for variable, expected in zip(variables, expected_variables, strict=True):
        assert variable.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(variable), np.asarray(expected))


def test_variables_come_back_under_their_names_or_those_of_a_dict(weights, file):
    for names in ([weight.name for weight in weights], [weight.name.removesuffix(":0") for weight in weights]):
        assert feeds.export_variables(weights, names, file) is None
        for filenames in (file, [file]):
            blank = _blank(weights)
            assert feeds.import_variables(blank, filenames) is None
            _assert_equal(blank, weights)
    feeds.export_variables(weights[:2], ["a", "b"], file)
    blank = _blank(weights[:2])
    feeds.import_variables({"b": blank[1], "a": blank[0]}, file)
    _assert_equal(blank, weights[:2])


def test_handles_stand_for_variables_and_metadata_of_the_user_is_kept(weights, file):
    handles = feeds.get_variable_handles(weights)
    assert all(handle.dtype == tf.resource for handle in handles)
    feeds.export_variables(handles, ["a", "b", "c", "d"], file, metadata={"step": 3})
    np.testing.assert_array_equal(_arrays(file)["a"], [[1, 2]])
    assert _metadata(file)["tensors"]["c"] == {"dtype": "bfloat16", "shape": [2]}
    assert _metadata(file)["user"] == {"step": 3}


def test_variables_of_a_strategy_and_weights_of_a_keras_model_come_back(strategy, file):
    parts = [keras.Input([3]), keras.layers.Dense(2, name="a"), keras.layers.Dense(1, name="b")]
    model = keras.Sequential(parts)
    trained, copy = model.weights, keras.models.clone_model(model).weights
    feeds.export_variables(trained, [weight.path for weight in trained], file)
    feeds.import_variables(copy, file)
    _assert_equal(copy, trained)
    with strategy.scope():
        variable, blank = tf.Variable([1.0, 2.0], name="w"), tf.Variable([0.0, 0.0], name="w")
    feeds.export_variables([variable], ["w"], file)
    feeds.import_variables([blank], file)
    np.testing.assert_array_equal(blank, [1, 2])
    assert "IPU" in blank.device


def test_several_files_are_read_as_one(weights, tmp_path):
    files = [str(tmp_path / weight.name) for weight in weights]
    for weight, file in zip(weights, files, strict=True):
        feeds.export_variables([weight], [weight.name], file)
    blank = _blank(weights)
    feeds.import_variables(blank, files)
    _assert_equal(blank, weights)
    with pytest.raises(ValueError, match="has `kernel:0`, which another file has too"):
        feeds.import_variables(blank, [files[0], *files])


def test_missing_variable_is_an_error_unless_it_may_be(file, capsys):
    feeds.export_variables([tf.Variable(1.0)], ["there"], file)
    variables = {"there": tf.Variable(0.0), "other": tf.Variable(5.0)}
    with pytest.raises(ValueError, match="no file has `other`; they have `there`"):
        feeds.import_variables(variables, file)
    assert float(variables["there"]) == 0
    feeds.import_variables(variables, file, strict=False)
    assert [float(variable) for variable in variables.values()] == [1, 5]
    assert capsys.readouterr().err.splitlines() == [
        f"wrote 1 tensors, 4 bytes, to {file!r}",
        f"read 1 of 2 variables, 4 bytes, from {file!r}",
    ]


def test_all_faults_of_variables_are_reported_before_one_is_assigned(file):
    feeds.export_variables([tf.Variable(1.0), tf.Variable(1.0), tf.Variable(1.0)], ["a", "b", "c"], file)
    variables = {"a": tf.Variable(0.0), "b": tf.Variable([0.0]), "c": tf.Variable(0)}
    with pytest.raises(ValueError, match=r"`b` is a variable of shape \(1,\).*; `c` is a variable of .* type int32"):
        feeds.import_variables(variables, file)
    assert float(variables["a"]) == 0


def test_graph_exports_and_imports_with_operations(file):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
        session.run(variable.initializer)
        write = feeds.export_variables([variable], ["w"], file)
        session.run(variable.assign([3.0, 4.0]))
        session.run(write)
        session.run(variable.assign([0.0, 0.0]))
        session.run(feeds.import_variables([variable], file))
        np.testing.assert_array_equal(session.run(variable), [3, 4])


def test_file_that_is_missing_or_of_another_format_is_refused(file, tmp_path, refused):
    variables, none = [tf.Variable(0.0)], tmp_path / "none"
    with open(file, "wb") as archive:
        np.savez(archive, a=np.zeros(3))
    for content in (b"", b"no archive", b"PK\x03\x04 broken", Path(file).read_bytes()):
        Path(file).write_bytes(content)
        message = "is not a file of tensors that this package has written"
        refused(ValueError, message, feeds.import_variables, variables, file)
    refused(FileNotFoundError, "none", feeds.import_variables, variables, str(none))
    refused(FileNotFoundError, "none/file", feeds.export_variables, variables, ["a"], str(none / "file"))


_DATASET = tf.data.Dataset.range(3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: feeds.dataset_extractor([1], 1, "f", "n"), TypeError, "`dataset` must be a `tf.data.Dataset`"),
        (lambda: feeds.dataset_extractor(_DATASET, 0, "f", "n"), ValueError, "`num_elements` must be at least 1"),
        (lambda: feeds.dataset_extractor(_DATASET, 1.5, "f", "n"), TypeError, "`num_elements` must be an int"),
        (lambda: feeds.dataset_extractor(_DATASET, 1, "", "n"), ValueError, "`filename` must not be empty"),
        (lambda: feeds.dataset_extractor(_DATASET, 1, 3, "n"), TypeError, "`filename` must be a path, but is 3"),
        (lambda: feeds.dataset_extractor(_DATASET, 1, "f", None), TypeError, "`feed_name` must be a str, but is None"),
        (lambda: feeds.dataset_extractor(_DATASET, 1, "f", "n", 2), TypeError, "`print_stats` must be True or False"),
        (lambda: feeds.export_dataset_to_file([1], "f", 1), TypeError, "`dataset_or_infeed` must be"),
        (lambda: feeds.get_variable_handles([1]), TypeError, "`variables` must hold variables"),
        (lambda: feeds.get_variable_handles(1), TypeError, "`variables` must be a list or tuple, but is 1"),
        (lambda: feeds.export_variables([], [], "f"), ValueError, "`variables` must not be empty"),
        (lambda: feeds.export_variables([1], ["a"], "f"), TypeError, "`variables` must hold variables"),
        (lambda: feeds.export_variables([1], "a", "f"), TypeError, "`names` must be a list or tuple, but is 'a'"),
        (lambda: feeds.export_variables([1, 2], ["", "a", "a"], "f"), ValueError, "holds ''.*`a` twice.*3 names for 2"),
        (lambda: feeds.export_variables([1], ["a"], "f", metadata={1}), TypeError, "`metadata` must be .* JSON"),
        (lambda: feeds.import_variables(["a"], "f"), TypeError, "`variables` must hold variables"),
        (lambda: feeds.import_variables({}, "f", strict=1), TypeError, "`strict` must be True or False"),
        (lambda: feeds.import_variables({}, []), ValueError, "`filenames` must not be empty"),
        (lambda: feeds.export_inputs_to_file(1, "f", {}), TypeError, "`inputs` must be a list or tuple"),
        (lambda: feeds.export_inputs_to_file([1], "f", []), TypeError, "`feed_dict` must be a dict"),
        (lambda: feeds.dataset_benchmark([1], 1, 1), TypeError, r"`dataset` must be a `tf.data.Dataset`, but is \[1\]"),
        (lambda: feeds.infeed_benchmark(_DATASET, 1, 1), TypeError, "`infeed_queue` must be an `IPUInfeedQueue`"),
    ],
)
def test_bad_arguments_are_refused(call, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        call()
    assert not any(tmp_path.iterdir())


def _epochs(report: Any) -> list[dict[str, float]]:
    content = json.loads(report.numpy()[0])
    assert list(content) == ["epochs"]
    return content["epochs"]


@pytest.fixture(params=["dataset", "infeed"])
def benchmark(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Returns `dataset_benchmark`, or `infeed_benchmark` of a queue over the same dataset."""
    if request.param == "dataset":
        return feeds.dataset_benchmark
    return lambda dataset, *args, **options: feeds.infeed_benchmark(ipu.IPUInfeedQueue(dataset), *args, **options)


@pytest.fixture
def pairs() -> tf.data.Dataset:
    """Returns an infinite dataset of elements of 4 * 4 + 1 = 17 bytes."""
    return tf.data.Dataset.from_tensors({"x": tf.zeros([4]), "y": tf.constant(True)}).repeat()


def test_each_epoch_counts_elements_bytes_and_time(benchmark, pairs, strategy, capfd):
    names = ["elements_processed", "total_bytes_processed", "time_elapsed", "elements_per_second", "bandwidth"]
    for options in ({}, {"do_memcpy": False}):
        with strategy.scope():
            epochs = _epochs(benchmark(pairs, 3, 200, print_stats=False, **options))
        assert len(epochs) == 3
        for epoch in epochs:
            assert list(epoch) == names
            assert (epoch["elements_processed"], epoch["total_bytes_processed"]) == (200, 200 * 17)
            assert epoch["time_elapsed"] > 0
            assert epoch["elements_per_second"] == pytest.approx(200 / epoch["time_elapsed"], rel=1e-6)
            assert epoch["bandwidth"] == pytest.approx(200 * 17 / epoch["time_elapsed"] * 1e-9, rel=1e-6)
    assert "elements/s" not in capfd.readouterr().err
    benchmark(pairs, 2, 10)  # Statistics are printed by default.
    lines = [line.split() for line in capfd.readouterr().err.splitlines()]
    assert ["epoch", "elements", "bytes", "seconds", "elements/s", "GB/s"] in lines
    assert [line[:3] for line in lines if line[-5:-3] == ["10", "170"]] == [["1", "10", "170"], ["2", "10", "170"]]


def test_all_epochs_are_one_pass_over_the_dataset_whose_error_comes_as_it_is(benchmark, numbers):
    assert len(_epochs(benchmark(numbers(30), 3, 10, print_stats=False))) == 3
    message = r"after 30 elements.*needs 40: 4 epochs \(`number_of_epochs`\) of 10.*`repeat\(\)`"
    with pytest.raises(tf.errors.OutOfRangeError, match=message):
        benchmark(numbers(30), 4, 10, print_stats=False)
    dataset = numbers(5).map(lambda n: tf.debugging.check_numerics(1.0 / tf.cast(n - 3, tf.float32), "oops"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="oops"):
        benchmark(dataset, 1, 5, print_stats=False)


def test_dense_elements_that_an_ipu_does_not_take_can_be_measured(numbers):
    of_shapes = numbers(1, 5).map(lambda n: tf.zeros([n]))
    wide = tf.data.Dataset.range(8)
    without_content = tf.data.Dataset.from_tensors((tf.ones([3]), tf.zeros([2, 0]))).repeat(8)
    for dataset, count, size in ((of_shapes, 4, 4 * 10), (wide, 8, 64), (without_content, 8, 8 * 12)):
        (epoch,) = _epochs(feeds.dataset_benchmark(dataset, 1, count, print_stats=False))
        assert (epoch["elements_processed"], epoch["total_bytes_processed"]) == (count, size)
    with pytest.raises(tf.errors.FailedPreconditionError, match="Unsupported datatype int64"):
        feeds.infeed_benchmark(ipu.IPUInfeedQueue(wide), 1, 8)
    no_numbers = tf.data.Dataset.from_tensors({"text": "a", "rows": tf.ragged.constant([[1], [2, 3]])})
    with pytest.raises(TypeError, match=r"dense tensors of numbers.*RaggedTensorSpec.*tf.string"):
        feeds.dataset_benchmark(no_numbers, 1, 1)


def test_graph_measures_anew_with_each_run(benchmark, pairs, numbers):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        report = benchmark(numbers(12), 2, 6, print_stats=False)
        assert report.shape == [1]
        for _ in range(2):  # Each benchmark makes one pass, because the dataset has no more elements.
            epochs = json.loads(session.run(report)[0])["epochs"]
            assert [epoch["total_bytes_processed"] for epoch in epochs] == [24, 24]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(benchmark(numbers(12), 1, 13, print_stats=False))
    measure = tf.function(lambda: feeds.dataset_benchmark(pairs, 1, 10, print_stats=False))
    assert [_epochs(measure())[0]["elements_processed"] for _ in range(2)] == [10, 10]


def test_infeed_keeps_its_position_and_needs_no_initializer(numbers, take_one):
    queue = ipu.IPUInfeedQueue(numbers(20))
    feeds.infeed_benchmark(queue, 1, 20, print_stats=False)
    queue.initializer  # noqa: B018
    assert [int(take_one(queue)) for _ in range(3)] == [0, 1, 2]
    feeds.infeed_benchmark(queue, 1, 20, print_stats=False)
    assert [int(take_one(queue)) for _ in range(3)] == [3, 4, 5]


def test_program_that_runs_meanwhile_gets_every_element(numbers, infeed_of, echo, start):
    n = 20000
    queue, outfeed = infeed_of(numbers(n)), ipu.IPUOutfeedQueue()
    run = start(lambda: echo(queue, outfeed, n))
    feeds.infeed_benchmark(queue, 2, n // 2, print_stats=False)
    run.result()
    np.testing.assert_array_equal(outfeed.dequeue(), np.arange(n))


def test_closed_session_ends_a_benchmark(benchmark, start):
    with tf.Graph().as_default():
        session = tf.compat.v1.Session()
        read = threading.Event()

        def element(n: Any) -> Any:
            read.set()
            return np.int32(n)

        dataset = tf.data.Dataset.range(10**9).map(lambda n: tf.numpy_function(element, [n], tf.int32))
        report = benchmark(dataset.map(lambda n: tf.ensure_shape(n, [])), 1, 10**9, print_stats=False)
        run = start(lambda: session.run(report))
        assert read.wait(60)
        session.close()
        with pytest.raises(tf.errors.CancelledError):
            run.result(60)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 10), ValueError, "`number_of_epochs` must be at least 1, but is 0"),
        ((1, -1), ValueError, "`elements_per_epochs` must be at least 1, but is -1"),
        ((10**20, 1), ValueError, f"`number_of_epochs` must be at most {2**63 - 1}, but is {10**20}"),
        ((1.0, 1), TypeError, "`number_of_epochs` must be an int, but is 1.0"),
        ((1, True), TypeError, "`elements_per_epochs` must be an int, but is True"),
        ((1, 1, 1), TypeError, "`print_stats` must be True or False, but is 1"),
        ((1, 1, True, "yes"), TypeError, "`(do_memcpy|apply_debug_options)` must be True or False"),
    ],
)
def test_bad_arguments_raise_where_the_original_returns_the_error(benchmark, pairs, arguments, error, message):
    with pytest.raises(error, match=message):
        benchmark(pairs, *arguments)


def test_queue_that_is_an_argument_of_a_program_is_refused(pairs, infeed_of, strategy):
    @tf.function(jit_compile=True)
    def program(queue: Any) -> None:
        with pytest.raises(ValueError, match="`infeed_queue` is an argument of a program"):
            feeds.infeed_benchmark(queue, 1, 1)

    strategy.run(program, (infeed_of(pairs),))
