"""The executable cache: other processes load from it; it is set by calls, the configuration and a variable; errors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native import executable_cache

# The program of a process: `before` is inserted at its beginning, and its data begin at `first`.
PROGRAM = """
    import sys
    import tensorflow as tf
    import tensorflow_ipu as ipu

    {before}
    strategy = ipu.IPUStrategy()
    outfeed = ipu.IPUOutfeedQueue()
    with strategy.scope():
        data = iter(tf.data.Dataset.range({first}, 100).map(lambda x: tf.cast(x, tf.float32)))
        total = tf.Variable(0.0)

    @tf.function(jit_compile=True)
    def program(steps):
        for _ in tf.range(steps):
            total.assign_add(next(data))
            outfeed.enqueue(total)

    strategy.run(program, (tf.constant(3),))
    results = outfeed.dequeue().numpy().tolist() if {first} else "nothing"
    counters = ("ExecutablesStored", "ExecutablesLoaded")
    print(*(ipu.counter_value(name) for name in counters), total.numpy(), results)
    """
CONFIGURED = """
    config = ipu.IPUConfig()
    config.serialization_output_folder = sys.argv[1]
    config.device_connection.type = ipu.config.DeviceConnectionType.PRE_COMPILE
    config.device_connection.version = "ipu2"
    config.configure_ipu_system()
"""
CALLED = """
    tf.function(lambda x: x + 1)(tf.constant(1))  # TensorFlow numbers later functions.
    ipu.executables.set_cache(sys.argv[1])
"""


@pytest.fixture(autouse=True)
def cache_as_it_was() -> Iterator[None]:
    executable_cache._asked.clear()
    executable_cache._warned.clear()
    yield
    executable_cache._asked.clear()
    executable_cache.refresh()


def script(before: str, first: int) -> str:
    return PROGRAM.format(before="\n    ".join(line.strip() for line in before.splitlines()), first=first)


# A process that only compiles fills the cache. A process that runs loads the program for other data, and logs nothing.
def test_other_processes_find_what_was_compiled(run_script, tmp_path):
    cache = tmp_path / "made" / "here"
    compiled = run_script(script(CONFIGURED, 0), str(cache))
    assert compiled.stdout.split() == ["1", "0", "0.0", "nothing"]
    assert len(list(cache.iterdir())) == 1
    by_variable = {"TF_POPLAR_FLAGS": f"--executable_cache_path={cache}"}
    for done in (run_script(script("", 1), env=by_variable), run_script(script(CALLED, 1), str(cache))):
        assert done.stdout.split() == ["0", "1", "6.0", "[1.0,", "3.0,", "6.0]"]
        assert "cpu_aot_loader" not in done.stderr
        assert "text-format" not in done.stderr


def test_call_goes_before_configuration_and_variable(monkeypatch, tmp_path):
    assert ipu.executables.cache_folder() is None
    monkeypatch.setenv("TF_POPLAR_FLAGS", f"--executable_cache_path={tmp_path / 'variable'}")
    config = ipu.IPUConfig()
    config.configure_ipu_system()
    assert ipu.executables.cache_folder() == str(tmp_path / "variable")
    config.serialization_output_folder = str(tmp_path / "configured")
    ipu.config.reset_ipu_configuration()
    config.configure_ipu_system()
    assert ipu.executables.cache_folder() == str(tmp_path / "configured")
    ipu.executables.set_cache(tmp_path / "called")
    assert ipu.executables.cache_folder() == str(tmp_path / "called")
    ipu.executables.set_cache(None)
    ipu.config.reset_ipu_configuration()
    assert ipu.executables.cache_folder() is None


def test_faults_of_folders_are_named_and_change_nothing(monkeypatch, tmp_path, refused):
    (tmp_path / "file").write_text("no folder")
    inside = tmp_path / "file" / "folder"
    with pytest.raises(ValueError, match=f"`folder` is `{inside}`, which cannot be created: Not a directory"):
        ipu.executables.set_cache(inside)
    config = ipu.IPUConfig()
    config.serialization_output_folder = str(inside)
    refused(ValueError, "`IPUConfig.serialization_output_folder` is", config.configure_ipu_system)
    refused(RuntimeError, "No IPU devices configured", ipu.config.get_ipu_config)
    monkeypatch.setenv("TF_POPLAR_FLAGS", f"--executable_cache_path={inside}")
    refused(ValueError, "`--executable_cache_path` in `TF_POPLAR_FLAGS` is", ipu.IPUConfig().configure_ipu_system)
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--executable_cache_path=")
    refused(ValueError, "names no folder; write `--executable_cache_path=FOLDER`", ipu.IPUConfig().configure_ipu_system)
    for error, max_bytes in ((TypeError, 1.5), (TypeError, True), (ValueError, 0)):
        with pytest.raises(error, match="`max_bytes` must be"):
            ipu.executables.set_cache(tmp_path, max_bytes)  # type: ignore[arg-type]
    assert ipu.executables.cache_folder() is None


def test_key_is_another_for_another_processor_version_or_flag(monkeypatch):
    monkeypatch.setattr(executable_cache, "machine_key", executable_cache.machine_key.__wrapped__)
    keys = [executable_cache.key.__wrapped__()]
    for owner, name, value in [
        (executable_cache, "_processor", lambda: ["another"]),
        (executable_cache.tf, "__version__", "3.0.0"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            keys.append(executable_cache.key.__wrapped__())
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    keys.append(executable_cache.key.__wrapped__())
    assert len(set(keys)) == len(keys)


@pytest.fixture
def compiled(strategy: Any) -> Any:
    """`compiled(function)` traces and runs a function; returns its result and how many executables were stored and loaded."""
    del strategy
    names = ("ExecutablesStored", "ExecutablesLoaded")

    def run(function: Any) -> tuple[float, int, int]:
        old_counts = [ipu.counter_value(name) or 0 for name in names]
        result = ipu.IPUStrategy().run(tf.function(function, jit_compile=True), (tf.constant(3.0),))
        stored, loaded = ((ipu.counter_value(name) or 0) - count for name, count in zip(names, old_counts, strict=True))
        return float(result), stored, loaded

    return run


def square(x: Any) -> Any:
    return x * x


# Without checks, a folder of this name ended the process, a pipe blocked it, and it ran the file of another program.
def test_file_that_cannot_be_used_costs_only_the_compilation(compiled, tmp_path):
    ipu.executables.set_cache(tmp_path)
    assert compiled(lambda x: x + 1) == (4, 1, 0)
    [first_file] = tmp_path.iterdir()
    assert compiled(square) == (9, 1, 0)
    [file] = set(tmp_path.iterdir()) - {first_file}
    assert compiled(square) == (9, 0, 1)
    shutil.copy(first_file, file)
    assert compiled(square) == (9, 1, 0)
    for make in (os.mkfifo, lambda path: path.symlink_to(first_file)):
        file.unlink()
        make(file)
        assert compiled(square) == (9, 1, 0)
        assert compiled(square) == (9, 0, 1)
    file.unlink()
    file.mkdir()
    assert compiled(square) == (9, 0, 0)
    assert set(tmp_path.iterdir()) == {file, first_file}


def test_folder_that_cannot_be_written_is_only_read(compiled):
    ipu.executables.set_cache("/proc/self")  # No user can create a file there.
    assert ipu.executables.cache_folder() == "/proc/self"
    assert compiled(square) == (9, 0, 0)


def test_folder_that_others_may_write_is_said_and_their_executables_are_used_only_if_trusted(
    compiled, tmp_path, caplog, monkeypatch
):
    folder = tmp_path / "shared"
    ipu.executables.set_cache(folder)
    assert folder.stat().st_mode & 0o022 == 0
    assert compiled(square) == (9, 1, 0)
    assert caplog.text == ""
    folder.chmod(0o1777)  # Other users can add files, but cannot replace any.
    ipu.executables.set_cache(folder)
    # The name of the file includes the user, because other users may have stored a file of the plain name.
    assert compiled(square) == (9, 1, 0)
    assert caplog.text == ""
    folder.chmod(0o777)
    for _ in range(2):
        ipu.executables.set_cache(folder)
    assert caplog.text.count("may be written to by others") == 1
    assert f"`{folder}`, where executables are kept" in caplog.text
    assert "set `TENSORFLOW_IPU_TRUST_EXECUTABLES=1` if you trust all users who may write there" in caplog.text
    assert compiled(square) == (9, 0, 1)
    for file in folder.iterdir():
        file.chmod(0o666)
    assert compiled(square) == (9, 1, 0)
    monkeypatch.setenv("TENSORFLOW_IPU_TRUST_EXECUTABLES", "1")
    ipu.executables.set_cache(folder)
    assert compiled(square) == (9, 0, 1)  # The plain name.


def test_folder_of_another_user_is_said_alike_by_call_configuration_and_variable(tmp_path, caplog, monkeypatch):
    folder = tmp_path / "shared"
    folder.mkdir()
    actual = os.stat

    def of_another(path: Any, **options: Any) -> os.stat_result:
        values = list(actual(path, **options))
        if Path(path) == folder:
            values[4:6] = 12345, 12345
        return os.stat_result(values)

    monkeypatch.setattr(executable_cache.os, "stat", of_another)
    config = ipu.IPUConfig()
    config.serialization_output_folder = str(folder)
    by_variable = {"TF_POPLAR_FLAGS": f"--executable_cache_path={folder}"}
    for use, variables in (
        (lambda: ipu.executables.set_cache(folder), {}),
        (config.configure_ipu_system, {}),
        (ipu.IPUConfig().configure_ipu_system, by_variable),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            use()
            assert "belongs to another user (owner 12345, group 12345, mode" in caplog.text
        ipu.config.reset_ipu_configuration()
        executable_cache._asked.clear()
        executable_cache._warned.clear()
        caplog.clear()


def test_compiled_program_starts_without_the_compiler(strategy, tmp_path):
    def loaded_by(call: Any) -> int:
        old_count = ipu.counter_value("ExecutablesLoaded") or 0
        call()
        return (ipu.counter_value("ExecutablesLoaded") or 0) - old_count

    with strategy.scope():
        variable = tf.Variable(2.0)
        program = tf.function(lambda x: variable.assign_add(x), jit_compile=True)
        prepared = ipu.compile(program, (tf.constant(1.0),))
        assert variable.numpy() == 2
        assert loaded_by(prepared.run) == 1
        assert variable.numpy() == 3
        assert loaded_by(lambda: strategy.run(program, (tf.constant(4.0),))) == 0
        assert variable.numpy() == 7
    ipu.executables.set_cache(tmp_path)
    counts = []
    for _ in range(3):
        prepared = ipu.compile(tf.function(lambda x: x * 3), (tf.constant(1.0),))
        counts.append(ipu.counter_value("ExecutablesStored"))
        assert loaded_by(prepared.run) == 1
        if len(counts) == 2:  # A truncated file is compiled again.
            (file,) = tmp_path.iterdir()
            file.write_bytes(file.read_bytes()[:100])
    assert counts == [counts[0], counts[0], counts[0] + 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="AsString"):
        ipu.compile(tf.function(lambda x: tf.strings.length(tf.strings.as_string(x))), (tf.ones([3]),))
