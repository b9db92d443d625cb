"""The compiled library is loaded once, early enough and for the right build, or an error says why it is not."""

import ctypes.util
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from tensorflow_ipu._native import library as loader
from tensorflow_ipu.errors import IpuError, LibraryError


@pytest.fixture
def build(tmp_path):
    """A library for TensorFlow 2.21.0 and the record that its build wrote."""
    library, info = tmp_path / "libtensorflow_ipu.so", tmp_path / "build_info.json"
    library.write_bytes(b"any library")
    record = {
        "tensorflow": "2.21.0",
        "supported": ["2.20", "2.21"],
        "sha256": hashlib.sha256(b"any library").hexdigest(),
    }
    info.write_text(json.dumps(record))
    return library, info


def test_library_of_the_running_tensorflow_is_taken(build):
    """A library for 2.22.0.dev20260905, in the form of pip, was once rejected by the TensorFlow 2.22.0-dev20260905."""
    loader.check_build(*build, "2.21.0")
    record = json.loads(build[1].read_text())
    for built, running in (("2.22.0.dev20260905", "2.22.0-dev20260905"), ("2.22.0rc1", "2.22.0-rc1")):
        build[1].write_text(json.dumps({**record, "tensorflow": built}))
        loader.check_build(*build, running)
        with pytest.raises(LibraryError):
            loader.check_build(*build, running[:-1] + "7")
    built = json.loads(loader.BUILD_INFO.read_text())["tensorflow"]
    assert loader.plain_version(built) == loader.plain_version(tf.__version__)
    assert loader.LIBRARY.is_file()


@pytest.mark.parametrize("running", ["2.20.0", "2.21.1", "2.22.0-rc0"])
def test_library_of_another_tensorflow_is_refused_with_both_ways_out(running, build):
    with pytest.raises(LibraryError, match="was built for TensorFlow `2.21.0`") as info:
        loader.check_build(*build, running)
    fitting = {"2.20.0": "--no-deps tensorflow-ipu==0.1.0.220`", "2.21.1": "--no-deps tensorflow-ipu==0.1.0.221`"}
    wheel = fitting.get(running, "There are only wheels for 2.20 and 2.21")
    for words in (f"TensorFlow `{running}` runs", wheel, "make build", "`pip install tensorflow-cpu==2.21.0`"):
        assert words in str(info.value)
    assert isinstance(info.value, IpuError)


def test_library_that_was_never_built_is_refused_with_how_to_build_it(build):
    library, info = build
    library.unlink()
    with pytest.raises(LibraryError, match=r"is missing.*g\+\+.*`make build`") as error:
        loader.check_build(library, info, "2.21.0")
    assert f"`{library}`" in str(error.value)


# A truncated library once ended the process with SIGBUS, and one with a block of zeros was loaded without an error.
def test_library_that_was_damaged_is_refused_before_it_is_opened(tmp_path):
    library, info = (Path(shutil.copy(path, tmp_path)) for path in (loader.LIBRARY, loader.BUILD_INFO))
    loader.check_build(library, info, tf.__version__)
    original = library.read_bytes()
    for damaged in (
        original[: len(original) // 2],
        original[:4096] + bytes(4096) + original[8192:],
        original + b"x",
        b"",
    ):
        library.write_bytes(damaged)
        with pytest.raises(LibraryError, match="truncated or replaced.*`pip install --force-r") as error:
            loader.check_build(library, info, tf.__version__)
        assert f"`{library}` of {len(damaged)} bytes" in str(error.value)


def test_record_of_the_build_that_says_nothing_is_refused(build, refused):
    library, info = build
    texts = ("", "{", "[]", "{}", "null", '{"tensorflow": "2.21.0"}', '{"tensorflow": null}', '"2.21.0"', "\x00", None)
    for text in texts:
        info.unlink() if text is None else info.write_text(text)
        refused(LibraryError, "which TensorFlow|was built for", loader.check_build, library, info, "2.21.0")


def test_library_that_does_not_load_or_lacks_a_function_is_refused_in_words(build, monkeypatch, refused):
    monkeypatch.setattr(loader, "LIBRARY", build[0])
    refused(LibraryError, r"does not load: .*`pip install --force-reinstall", loader._load_ops)
    with pytest.raises(LibraryError, match=r"is not of this version of the package: .*`pip install --force-reinstall"):
        loader._load_native()
    # A library of an older checkout once caused an AttributeError of ctypes.
    monkeypatch.setattr(loader, "LIBRARY", ctypes.util.find_library("m"))
    refused(LibraryError, r"is not of this version of the package: .*undefined symbol: ipu_", loader._load_native)


def test_import_that_comes_too_late_or_with_a_malformed_variable_is_refused_in_words(run_script):
    done = run_script(
        """
        import os

        import tensorflow as tf

        def attempt():
            try:
                import tensorflow_ipu
            except (RuntimeError, ValueError) as exc:
                print(type(exc).__name__, exc)

        for value in ("many", "99999999"):
            os.environ["TENSORFLOW_IPU_DEVICES"] = value
            attempt()
        del os.environ["TENSORFLOW_IPU_DEVICES"]
        tf.constant(1) + 1
        attempt()
        """
    )
    malformed, high, late = done.stdout.splitlines()
    assert "ValueError `TENSORFLOW_IPU_DEVICES=99999999` is too high; set it to a number from 1 to 1024" in high
    assert malformed.startswith("ValueError `TENSORFLOW_IPU_DEVICES=many` is not a positive whole number")
    assert late.startswith("LibraryError TensorFlow's runtime started before `import tensorflow_ipu`")
    assert "Import `tensorflow_ipu` before the first tensor is created" in late


def test_import_starts_no_runtime_and_changes_nothing_of_tensorflow(run_script):
    done = run_script(
        """
        import sys

        import tensorflow as tf
        from tensorflow.python.eager import context

        before = tf.data.Dataset.__iter__, tf.distribute.get_strategy(), tf.config.get_soft_device_placement
        import tensorflow_ipu
        import tensorflow_ipu.compat

        assert not context.context()._initialized
        assert "tensorflow_ipu.keras.optimizers" not in sys.modules  # It takes time to import.
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )
        assert before == (tf.data.Dataset.__iter__, tf.distribute.get_strategy(), tf.config.get_soft_device_placement)
        print(len(tf.config.list_logical_devices("CPU")), len(tf.config.list_logical_devices("IPU")))
        strategy = tensorflow_ipu.IPUStrategy(cpu_device="/device:CPU:1")
        places = []
        with strategy.scope():
            tf.Variable(lambda: places.append(tf.identity(1.0).device) or 1.0)
        print(places[0].rpartition("/")[2])
        """
    )
    assert done.stdout.split() == ["2", "8", "device:CPU:1"]
