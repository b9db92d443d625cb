"""What is written to files of tensors, what comes back, and what is refused."""

from __future__ import annotations

import json
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
    """The arrays of a file by name, as NumPy alone reads them."""
    with np.load(file) as archive:
        return {name: archive[name] for name in archive.files if name != "__metadata__"}


def _metadata(file: str) -> dict[str, Any]:
    with np.load(file) as archive:
        return json.loads(str(archive["__metadata__"]))


@pytest.fixture
def images() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(
        ({"image": np.arange(24, dtype=np.float32).reshape(6, 2, 2)}, np.arange(6, dtype=np.uint8))
    )


def test_dataset_becomes_one_array_a_tensor_stacked_over_elements(images: Any, file: str) -> None:
    assert feeds.dataset_extractor(images, 4, file, "train") is None
    arrays = _arrays(file)
    assert list(arrays) == ["train/0/image", "train/1"]
    np.testing.assert_array_equal(
        arrays["train/0/image"], np.arange(16, dtype=np.float32).reshape(4, 2, 2), strict=True
    )
    np.testing.assert_array_equal(arrays["train/1"], np.arange(4, dtype=np.uint8), strict=True)


def test_metadata_describes_the_file(images: Any, file: str) -> None:
    feeds.dataset_extractor(images, 4, file, "train")
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


@pytest.mark.parametrize(("feed_name", "name"), [("feed", "feed"), ("", "element")])
def test_single_tensor_has_the_name_of_the_feed(numbers: Any, file: str, feed_name: str, name: str) -> None:
    feeds.dataset_extractor(numbers(3), 3, file, feed_name)
    assert list(_arrays(file)) == [name]


def test_tensor_may_be_called_file(file: str) -> None:
    feeds.dataset_extractor(tf.data.Dataset.from_tensors({"file": 1.0}), 1, file, "")
    assert list(_arrays(file)) == ["file"]


@pytest.mark.parametrize("there", [0, 3])
def test_dataset_that_ends_too_early_leaves_the_old_file(numbers: Any, file: str, there: int) -> None:
    Path(file).write_text("old")
    with pytest.raises(tf.errors.OutOfRangeError, match=f"ended after {there} elements, and `num_elements` is 4"):
        feeds.dataset_extractor(numbers(there), 4, file, "feed")
    assert Path(file).read_text() == "old"
    assert list(Path(file).parent.iterdir()) == [Path(file)]


def test_error_of_the_dataset_comes_as_it_is(numbers: Any, file: str) -> None:
    dataset = numbers(3).map(lambda n: tf.debugging.check_numerics(1.0 / tf.cast(n, tf.float32), "oops"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="oops"):
        feeds.dataset_extractor(dataset, 3, file, "feed")


def test_elements_of_different_shapes_are_refused(numbers: Any, file: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="batch"):
        feeds.dataset_extractor(numbers(3).map(lambda n: tf.zeros([n + 1])), 3, file, "feed")


def test_graph_writes_with_each_run_of_the_operation(file: str) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = tf.data.Dataset.from_tensor_slices(np.arange(5, dtype=np.int32))
        operation = feeds.dataset_extractor(dataset, 3, file, "feed")
        assert not Path(file).exists()
        for _ in range(2):
            session.run(operation)
            np.testing.assert_array_equal(_arrays(file)["feed"], np.arange(3, dtype=np.int32), strict=True)
            Path(file).unlink()


@pytest.mark.parametrize("there", [0, 2])
def test_graph_tells_of_a_dataset_that_ends_too_early(file: str, there: int) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        operation = feeds.dataset_extractor(tf.data.Dataset.range(there), 3, file, "feed")
        with pytest.raises(tf.errors.OutOfRangeError, match=f"ended after {there} elements, and `num_elements` is 3"):
            session.run(operation)


def test_statistics_are_printed_on_request(numbers: Any, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    feeds.dataset_extractor(numbers(3), 3, file, "feed")
    assert capsys.readouterr().err == f"wrote 1 tensors, 12 bytes, to {file!r}\n"
    feeds.dataset_extractor(numbers(3), 3, file, "feed", print_stats=False)
    assert capsys.readouterr().err == ""


def test_dataset_and_infeed_go_to_a_file_at_once(images: Any, file: str, strategy: Any) -> None:
    for source in (images, ipu.IPUInfeedQueue(images)):
        with strategy.scope():
            feeds.export_dataset_to_file(source, file, 2, "feed")
        assert [array.shape for array in _arrays(file).values()] == [(2, 2, 2), (2,)]
        Path(file).unlink()


def test_infeed_keeps_its_position(numbers: Any, infeed_of: Any, take_one: Any, file: str) -> None:
    queue = infeed_of(numbers(9))
    assert int(take_one(queue)) == 0
    feeds.export_dataset_to_file(queue, file, 9)
    assert int(take_one(queue)) == 1


@pytest.mark.parametrize("own_session", [False, True])
def test_graph_exports_a_dataset_at_once(file: str, own_session: bool) -> None:
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_tensor_slices(np.arange(5, dtype=np.int32))
        if own_session:
            with tf.compat.v1.Session():
                feeds.export_dataset_to_file(dataset, file, 5, "feed")
        else:
            feeds.export_dataset_to_file(dataset, file, 5, "feed")
    assert _arrays(file)["feed"].shape == (5,)


def test_inputs_of_a_graph_go_to_a_file(file: str) -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        y = tf.multiply(x, 2.0, name="y")
        feeds.export_inputs_to_file([x, y], file, {x: [1.0, 2.0]})
    arrays = _arrays(file)
    np.testing.assert_array_equal(arrays["x"], np.float32([1, 2]), strict=True)
    np.testing.assert_array_equal(arrays["y"], np.float32([2, 4]), strict=True)
    assert _metadata(file)["kind"] == "inputs"


def test_inputs_by_name_go_to_a_file(file: str) -> None:
    inputs = [tf.TensorSpec([None, 2], tf.float32, "x"), keras.Input([3], dtype="int32", name="y")]
    feeds.export_inputs_to_file(inputs, file, {"x": [[1, 2]], "y": np.ones([4, 3], np.int64)})
    arrays = _arrays(file)
    np.testing.assert_array_equal(arrays["x"], np.float32([[1, 2]]), strict=True)
    np.testing.assert_array_equal(arrays["y"], np.ones([4, 3], np.int32), strict=True)


def test_all_faults_of_inputs_are_reported_at_once(file: str) -> None:
    inputs = [
        tf.TensorSpec([2], tf.float32, "shape"),
        tf.TensorSpec([2], tf.int32, "type"),
        tf.TensorSpec([2], tf.float32, "absent"),
        tf.TensorSpec([2], tf.float32),
    ]
    with pytest.raises(
        ValueError, match=r"`inputs` holds ''.*; .*`shape` has shape.*; .*`type` has type.*; .*`absent`"
    ):
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


def _assert_equal(variables: list[Any], others: list[Any]) -> None:
    for variable, other in zip(variables, others, strict=True):
        assert variable.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(variable), np.asarray(other))


def test_variables_come_back_under_their_names(weights: Any, file: str) -> None:
    assert feeds.export_variables(weights, [weight.name for weight in weights], file) is None
    blank = _blank(weights)
    assert feeds.import_variables(blank, file) is None
    _assert_equal(blank, weights)


@pytest.mark.parametrize("suffix", ["", ":0"])
def test_name_in_the_file_may_lack_the_output_number(file: str, suffix: str) -> None:
    feeds.export_variables([tf.Variable(1.0)], [f"kernel{suffix}"], file)
    variable = tf.Variable(0.0, name="kernel")
    feeds.import_variables([variable], [file])
    assert float(variable) == 1


def test_dict_names_the_variables(weights: Any, file: str) -> None:
    feeds.export_variables(weights[:2], ["a", "b"], file)
    blank = _blank(weights[:2])
    feeds.import_variables({"b": blank[1], "a": blank[0]}, file)
    _assert_equal(blank, weights[:2])


def test_handles_stand_for_variables(weights: Any, file: str) -> None:
    handles = feeds.get_variable_handles(weights)
    assert all(handle.dtype == tf.resource for handle in handles)
    feeds.export_variables(handles, ["a", "b", "c", "d"], file)
    np.testing.assert_array_equal(_arrays(file)["a"], [[1, 2]])
    assert _metadata(file)["tensors"]["c"] == {"dtype": "bfloat16", "shape": [2]}


def test_variables_on_the_device_of_a_strategy_come_back(strategy: Any, file: str) -> None:
    with strategy.scope():
        variable, other = tf.Variable([1.0, 2.0], name="w"), tf.Variable([0.0, 0.0], name="w")
    feeds.export_variables([variable], ["w"], file)
    feeds.import_variables([other], file)
    np.testing.assert_array_equal(other, [1, 2])
    assert "IPU" in other.device


def test_weights_of_a_keras_model_come_back(file: str) -> None:
    def model() -> keras.Model:
        return keras.Sequential([keras.Input([3]), keras.layers.Dense(2, name="a"), keras.layers.Dense(1, name="b")])

    keras.utils.clear_session()
    trained = model()
    feeds.export_variables(trained.weights, [weight.path for weight in trained.weights], file)
    keras.utils.clear_session()
    other = model()
    feeds.import_variables(other.weights, file)
    for weight, expected in zip(other.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_several_files_are_read_as_one(weights: Any, tmp_path: Path) -> None:
    files = [str(tmp_path / weight.name) for weight in weights]
    for weight, file in zip(weights, files, strict=True):
        feeds.export_variables([weight], [weight.name], file)
    blank = _blank(weights)
    feeds.import_variables(blank, files)
    _assert_equal(blank, weights)
    with pytest.raises(ValueError, match="has `kernel:0`, which another file has too"):
        feeds.import_variables(blank, [files[0], *files])


def test_metadata_of_the_user_is_kept(file: str) -> None:
    feeds.export_variables([tf.Variable(1.0)], ["a"], file, metadata={"step": 3})
    assert _metadata(file)["user"] == {"step": 3}


def test_missing_variable_is_an_error_unless_it_may_be(file: str) -> None:
    feeds.export_variables([tf.Variable(1.0)], ["there"], file)
    variables = {"there": tf.Variable(0.0), "other": tf.Variable(5.0)}
    with pytest.raises(ValueError, match="no file has `other`; they have `there`"):
        feeds.import_variables(variables, file)
    assert float(variables["there"]) == 0
    feeds.import_variables(variables, file, strict=False)
    assert [float(variable) for variable in variables.values()] == [1, 5]


def test_all_faults_of_variables_are_reported_before_one_is_assigned(file: str) -> None:
    feeds.export_variables([tf.Variable(1.0), tf.Variable(1.0), tf.Variable(1.0)], ["a", "b", "c"], file)
    variables = {"a": tf.Variable(0.0), "b": tf.Variable([0.0]), "c": tf.Variable(0)}
    with pytest.raises(ValueError, match=r"`b` is a variable of shape \(1,\).*; `c` is a variable of .* type int32"):
        feeds.import_variables(variables, file)
    assert float(variables["a"]) == 0


def test_graph_exports_and_imports_with_operations(file: str) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
        session.run(variable.initializer)
        write = feeds.export_variables([variable], ["w"], file)
        session.run(variable.assign([3.0, 4.0]))
        session.run(write)
        session.run(variable.assign([0.0, 0.0]))
        session.run(feeds.import_variables([variable], file))
        np.testing.assert_array_equal(session.run(variable), [3, 4])


def test_statistics_of_variables_are_printed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    feeds.export_variables([tf.Variable(1.0)], ["a"], file)
    feeds.import_variables({"a": tf.Variable(1.0), "b": tf.Variable(1.0)}, file, strict=False)
    assert capsys.readouterr().err.splitlines() == [
        f"wrote 1 tensors, 4 bytes, to {file!r}",
        f"read 1 of 2 variables, 4 bytes, from {file!r}",
    ]


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_file_of_another_format_is_refused(file: str, content: bytes) -> None:
    Path(file).write_bytes(content)
    with pytest.raises(ValueError, match=r"is no file of tensors that this package has written"):
        feeds.import_variables([tf.Variable(0.0)], file)


def test_archive_without_our_metadata_is_refused(file: str) -> None:
    with open(file, "wb") as archive:
        np.savez(archive, a=np.zeros(3))
    with pytest.raises(ValueError, match=r"is no file of tensors that this package has written"):
        feeds.import_variables([tf.Variable(0.0)], file)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        feeds.import_variables([tf.Variable(0.0)], str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        feeds.export_variables([tf.Variable(0.0)], ["a"], str(tmp_path / "none" / "file"))


_DATASET = tf.data.Dataset.range(3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
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
        (
            lambda: feeds.export_variables([1], ["a"], "f", metadata={1}),
            TypeError,
            "`metadata` must be something that JSON",
        ),
        (lambda: feeds.import_variables(["a"], "f"), TypeError, "`variables` must hold variables"),
        (lambda: feeds.import_variables({}, "f", strict=1), TypeError, "`strict` must be True or False"),
        (lambda: feeds.import_variables({}, []), ValueError, "`filenames` must not be empty"),
        (lambda: feeds.export_inputs_to_file(1, "f", {}), TypeError, "`inputs` must be a list or tuple"),
        (lambda: feeds.export_inputs_to_file([1], "f", []), TypeError, "`feed_dict` must be a dict"),
    ],
)
def test_bad_arguments_are_refused(
    call: Callable[[], Any], error: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        call()
    assert not any(tmp_path.iterdir())
