"""The embedded runtime: weights, names, threads, pipelines, replicas, timeouts, stops and errors."""

from __future__ import annotations

import functools
import json
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.executables import application_compile_op, embedded_runtime
from tensorflow_ipu.executables.application_compile_op import experimental_application_compile_op
from tensorflow_ipu.executables.embedded_runtime import (
    RuntimeContext,
    embedded_runtime_call,
    embedded_runtime_start,
    embedded_runtime_start_and_call,
    embedded_runtime_stop,
)
from tensorflow_ipu.ops import replication_ops

WEIGHTS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


@pytest.fixture
def start() -> Iterator[Any]:
    """Returns `embedded_runtime_start`; its applications are stopped after the test."""
    started: list[RuntimeContext] = []

    def begin(*args: Any, **kwargs: Any) -> RuntimeContext:
        started.append(embedded_runtime_start(*args, **kwargs))
        return started[-1]

    yield begin
    for context in started:
        embedded_runtime_stop(context)


def compile_to(path: Path, frozen: bool, pipelined: bool) -> str:
    """Compiles a program with an argument, weights and a dict of inputs: `weights @ x * factor + bias`, and `factor`."""
    with ipu.IPUStrategy().scope():
        weights = tf.Variable(WEIGHTS, name="weights")
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors({"x": tf.zeros([2]), "factor": 0}).repeat())
        infeed.initializer  # noqa: B018  (Reading the attribute starts it.)
        outfeed = ipu.IPUOutfeedQueue()

        def body(x: Any, factor: Any) -> Any:
            tf.debugging.assert_less(factor, 1000, "too large a factor")
            return tf.linalg.matvec(weights, x) * tf.cast(factor, tf.float32), factor

        def looped(bias: Any) -> Any:
            def step(x: Any, factor: Any) -> Any:
                product, same = body(x, factor)
                index = tf.cast(replication_ops.replication_index(), tf.float32)
                return outfeed.enqueue({"y": product + bias + 0 * index, "factor": same})

            return ipu.loops.repeat(5, step, [], infeed)

        def staged(bias: Any) -> Any:
            return ipu.pipelining.pipeline(
                [lambda bias, x, factor: (bias, *body(x, factor)), lambda b, y, factor: {"y": y + b, "factor": factor}],
                gradient_accumulation_count=4,
                inputs=[bias],
                infeed_queue=infeed,
                outfeed_queue=outfeed,
            )

        func = staged if pipelined else looped
        file: Any = experimental_application_compile_op(func, [tf.constant(0.0)], path, freeze_variables=frozen)
        infeed.deleter  # noqa: B018
        return file.numpy().decode()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """`compiled(count, frozen, pipelined)` returns such a file for `count` IPUs, and compiles it only once."""
    return functools.cache(lambda _, *options: compile_to(tmp_path_factory.mktemp("app") / "app.poplar_exec", *options))


@pytest.fixture
def make(replicas: Any, compiled: Callable[..., str]) -> Callable[..., str]:
    """`make(count, frozen, pipelined)` configures a device of `count` IPUs, and returns the file of a program for it."""

    def file_for(count: int, frozen: bool, pipelined: bool = False) -> str:
        replicas(count)
        return compiled(count, frozen, pipelined)

    return file_for


def expected(x: Any, factor: float, bias: float) -> Any:
    return WEIGHTS @ np.asarray(x) * factor + bias


def check(context: RuntimeContext, factor: int, bias: float = 1.0) -> None:
    same, y = embedded_runtime_call([tf.constant(factor), [1.0, 2.0]], context)
    assert same.numpy() == factor
    np.testing.assert_allclose(y, expected([1, 2], factor, bias))


def by_threads(call: Callable[[int], None], count: int) -> None:
    """Calls the function with each number below `count`, each time on a new thread."""
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(call, range(count)))


def check_by_threads(context: RuntimeContext) -> None:
    by_threads(lambda index: [check(context, factor) for factor in range(100 * index, 100 * index + 20)] and None, 4)


def test_another_process_runs_it_with_its_weights_and_does_not_compile(make, run_script):
    path = make(1, frozen=False)
    done = run_script(
        """
        import sys
        import tensorflow as tf
        import tensorflow_ipu as ipu
        from tensorflow_ipu.executables import embedded_runtime as runtime

        tf.function(lambda x: x + 1)(tf.constant(1))  # TensorFlow numbers later functions.
        weights = {"weights": tf.constant([[1.0, 0.0], [0.0, 2.0]]), "bias": tf.constant(0.5)}
        (same, y), context = runtime.embedded_runtime_start_and_call(
            sys.argv[1], weights, [tf.constant(10), tf.constant([1.0, 2.0])], "app"
        )
        print(int(same), y.numpy().tolist(), ipu.counter_value("ExecutablesLoaded"), context.start_output().numpy())

        @tf.function
        def served(x):
            return runtime.embedded_runtime_call([tf.constant(3), x], context)

        print(served(tf.constant([1.0, 1.0]))[1].numpy().tolist())
        """,
        path,
    )
    assert done.stdout.splitlines() == ["10 [10.5, 40.5] 1 b'app'", "[3.5, 6.5]"]


def test_frozen_program_answers_threads_and_fails_by_name(make, start, refused):
    path = make(1, frozen=True)
    context = start(path, [1.0], "app")
    signature = context.signature()
    assert [(spec.name, spec.dtype) for spec in signature.inputs] == [("bias", tf.float32)]
    assert [(spec.name, spec.shape) for spec in signature.streamed_inputs] == [("factor", []), ("x", [2])]
    assert [spec.name for spec in signature.streamed_outputs] == ["factor", "y"]
    assert context.output_types() == [tf.int32, tf.float32]
    check_by_threads(context)
    other = start(path, {"bias": 2.0}, "other")
    check(other, 3, 2.0)
    check(context, 4)
    for factor in (2000, 1):
        inputs = [tf.constant(factor), [1.0, 2.0]]
        refused(tf.errors.InvalidArgumentError, "too large a factor", embedded_runtime_call, inputs, context)
    check(other, 5, 2.0)
    embedded_runtime_stop(other)
    embedded_runtime_stop(other)
    refused(RuntimeError, "was stopped", embedded_runtime_call, [tf.constant(1), [1.0, 2.0]], other)


@pytest.mark.parametrize("pipelined", [True, False])
def test_pipeline_and_replicas_answer_calls_that_nothing_follows_and_end_in_time(pipelined, make, start, refused):
    path = make(2, frozen=True, pipelined=pipelined)
    context = start(path, [1.0], "app", timeout=2000)
    check(context, 7)
    check_by_threads(context)
    if pipelined:
        embedded_runtime_stop(context)
        context = start(path, [1.0], "app", timeout=10**9)
        inputs, message = [tf.constant(1), [1.0, 2.0]], r"`app` has not answered within 0.05 s"
        error = tf.errors.DeadlineExceededError
        refused(error, message, embedded_runtime_call, inputs, context, timeout_seconds=0.05)


def test_calls_bring_an_element_of_each_infeed_and_are_answered_from_each_outfeed(strategy, start, tmp_path):
    with strategy.scope():
        infeeds = [iter(tf.data.Dataset.from_tensors({"x": tf.zeros([2]), "by": 1}).repeat()) for _ in range(2)]
        outfeeds = [ipu.IPUOutfeedQueue() for _ in range(2)]

        def program() -> None:
            for _ in tf.range(3):
                first, second = (next(infeed) for infeed in infeeds)
                outfeeds[0].enqueue({"y": first["x"] * tf.cast(second["by"], tf.float32)})
                outfeeds[1].enqueue({"sum": first["x"] + second["x"], "by": first["by"]})

        path: Any = experimental_application_compile_op(program, [], tmp_path / "app")
    context = start(path.numpy().decode(), [], "app")
    assert [spec.name for spec in context.signature().streamed_inputs] == ["0.by", "0.x", "1.by", "1.x"]
    assert [spec.name for spec in context.signature().streamed_outputs] == ["y", "by", "sum"]

    def call(by: int) -> None:
        for x in range(10):
            y, same, total = embedded_runtime_call([by, [1.0, x], 2, [0.5, by]], context)
            assert (y.numpy().tolist(), same.numpy(), total.numpy().tolist()) == ([2, 2 * x], by, [1.5, x + by])

    by_threads(call, 3)


def test_device_runs_as_many_applications_as_it_has_ipus(make, start, refused):
    path, two = make(1, frozen=True), make(2, frozen=True)
    first, second = (start(path, [bias], str(bias)) for bias in (1.0, 2.0))
    for factor in range(5):
        check(first, factor, 1.0)
        check(second, factor, 2.0)
    for file, ipus in ((path, 1), (two, 2)):
        message = f"has 2 IPUs, but other applications use 2, and this one needs {ipus}"
        refused(RuntimeError, message, start, file, [3.0], "other")
    embedded_runtime_stop(first)
    refused(RuntimeError, "use 1, and this one needs 2", start, two, [3.0], "other")
    check(start(path, [3.0], "third"), 5, 3.0)


def test_overflow_ends_an_application(start, tmp_path, refused):
    config = ipu.IPUConfig()
    config.floating_point_behaviour.oflo = True
    config.configure_ipu_system()
    with ipu.IPUStrategy().scope():
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors({"x": tf.zeros([2], tf.float16)}).repeat())
        infeed.initializer  # noqa: B018  (Reading the attribute starts it.)
        outfeed = ipu.IPUOutfeedQueue()

        def program() -> Any:
            return ipu.loops.repeat(2, lambda x: outfeed.enqueue({"y": x * 60000}), [], infeed)

        path: Any = experimental_application_compile_op(program, [], tmp_path / "app")
        infeed.deleter  # noqa: B018
    context = start(path.numpy().decode(), [], "app", timeout=10**7)
    [y] = embedded_runtime_call([tf.constant([0.5, 1.0], tf.float16)], context)
    np.testing.assert_array_equal(y, [30000, 60000])

    def overflow() -> None:
        for _ in range(3):  # The first call may still be answered before its run fails. Then a later call fails.
            embedded_runtime_call([tf.constant([2.0, 2.0], tf.float16)], context)

    refused(tf.errors.OpError, "Floating point exception", overflow)


def rewritten(
    path: str,
    target: Path,
    manifest: dict[str, Any] | None = None,
    more: dict[str, bytes] | None = None,
    **options: Any,
) -> Path:
    """Copies an application with changes of its manifest and additional entries."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w", **options) as archive:
        for name in source.namelist():
            contents = source.read(name)
            if name == "application.json":
                contents = json.dumps({**json.loads(contents), **(manifest or {})}).encode()
            archive.writestr(name, contents)
        for name, contents in (more or {}).items():
            archive.writestr(name, contents)
    return target


# An entry `executables/../x` was written outside of the temporary folder, and each start left this folder.
def test_names_in_an_application_are_no_paths_and_starts_leave_nothing(make, start, tmp_path, monkeypatch):
    path = make(1, frozen=True)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    outside = tmp_path / "written"
    names = [f"executables/{outside}", f"executables/../../{outside.name}", str(outside), "executables/", "link"]
    more = dict.fromkeys(names, b"not ours")
    foreign = rewritten(path, tmp_path / "foreign", more=more)
    threads = set(threading.enumerate())
    for _ in range(3):
        context = start(foreign, [1.0], "app")
        check(context, 3)
        embedded_runtime_stop(context)
    assert set(threading.enumerate()) == threads
    assert list(temporary.iterdir()) == []
    assert not outside.exists()


def test_application_for_another_processor_is_compiled_at_the_start(make, start, tmp_path):
    path = make(1, frozen=True)
    for key, expected_loads in (({}, 1), ({"key": "another"}, 0)):
        # With another name, because this process has already compiled the program.
        file = rewritten(path, tmp_path / "app", {"name": f"renamed{expected_loads}", **key})
        old_count = ipu.counter_value("ExecutablesLoaded") or 0
        context = start(file, [1.0], "app")
        check(context, 3)
        embedded_runtime_stop(context)
        assert (ipu.counter_value("ExecutablesLoaded") or 0) - old_count == expected_loads


def test_start_that_fails_leaves_no_queue_and_no_executable(make, start, monkeypatch):
    path = make(1, frozen=True)
    released: list[str] = []
    threads = threading.active_count()

    def fail(*_: Any) -> Any:
        raise RuntimeError("no state")

    monkeypatch.setattr(embedded_runtime.executable_cache, "release", released.append)
    monkeypatch.setattr(embedded_runtime.stored_feeds, "StoredResults", fail)
    with pytest.raises(RuntimeError, match="no state"):
        start(path, [1.0], "app")
    assert len(released) == 1
    assert threading.active_count() == threads

    # Ctrl-C after the start of the first thread and before the second left the first one running.
    monkeypatch.undo()
    begin = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        begin(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(path, [1.0], "app")
    assert threading.active_count() == threads


def test_application_that_cannot_be_written_leaves_no_file(strategy, tmp_path, monkeypatch):
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.zeros([2])).repeat())
    outfeed = ipu.IPUOutfeedQueue()

    def program() -> Any:
        return ipu.loops.repeat(2, lambda x: outfeed.enqueue(x + 1), [], infeed)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with strategy.scope():
        infeed.initializer  # noqa: B018  (Reading the attribute starts it.)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        (tmp_path / "app").write_text("the last one")
        for folder in (tmp_path / "app", None):
            with monkeypatch.context() as patch:
                patch.setattr(application_compile_op.zipfile.ZipFile, "writestr", fail)
                with pytest.raises(OSError, match="No space left on device"):
                    experimental_application_compile_op(program, [], folder)
        files = [file for file in tmp_path.iterdir() if not file.name.startswith("__autograph")]  # TensorFlow's.
        assert [(file.name, file.read_text()) for file in files] == [("app", "the last one")]
        path: Any = experimental_application_compile_op(program, [], name="scope/app")
        infeed.deleter  # noqa: B018
    assert Path(path.numpy().decode()).name == "scope_app.poplar_exec"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_ambiguous_and_oversized_applications_are_refused(make, start, tmp_path, refused):
    path = make(1, frozen=True)
    with zipfile.ZipFile(path) as archive:
        [name] = [name for name in archive.namelist() if name.startswith("executables/")]
    for file, message in (
        (rewritten(path, tmp_path / "twice", more={name: b"another"}), f"it has `{name}` 2 times"),
        (rewritten(path, tmp_path / "packed", compression=zipfile.ZIP_DEFLATED), "`application.json` in it is compr"),
        (rewritten(path, tmp_path / "list", {"arguments": None, "other": 1}), "unexpected keyword argument 'other'"),
    ):
        refused(
            ValueError, f"`executable_file` is `{file}`, which is no program .*{message}", start, file, [1.0], "app"
        )
    large = rewritten(path, tmp_path / "large")
    contents = bytearray(large.read_bytes())
    entry = contents.rindex(name.encode()) - 46  # The entry in the directory has its sizes at offsets 20 and 24.
    contents[entry + 20 : entry + 28] = 2 * (1 << 30).to_bytes(4, "little")
    large.write_bytes(contents)
    refused(ValueError, f"its entries are larger than its {len(contents)} bytes", start, large, [1.0], "app")


def test_faults_are_named(make, replicas, start, tmp_path, refused):
    path = make(1, frozen=False)
    weights = tf.constant(WEIGHTS)
    with pytest.raises(FileNotFoundError):
        start(tmp_path / "gone", [], "app")
    (tmp_path / "text").write_text("no program")
    zipfile.ZipFile(tmp_path / "zip", "w").close()
    for name in ("text", "zip"):
        refused(ValueError, f"`executable_file` is `.*{name}`, which is no program", start, tmp_path / name, [], "app")
    refused(ValueError, "it has no `application.json`", start, tmp_path / "zip", [], "app")
    for error, message, inputs in [
        (TypeError, "Expected the inputs to be a list", 3),
        (ValueError, "expects 2 inputs .`bias`, `weights`., but 1 were provided", [1.0]),
        (ValueError, r"shape at position 1 \(`weights`\). Expected \(2, 2\), but input 1 has shape \(\)", [1.0, 1.0]),
        (ValueError, r"dtype at position 0 \(`bias`\). Expected float32, but input 0 has dtype int32", [1, weights]),
        (ValueError, "names `bias`, `weights` in `inputs`, which has `other`", {"other": 1}),
    ]:
        refused(error, message, start, path, inputs, "app")
    message = "`timeout` must be a positive number of microseconds, but is 0"
    refused(ValueError, message, start, path, [1.0, weights], "app", timeout=0)
    context = start(path, [1.0, weights], "app")
    for error, message, inputs in [
        (ValueError, "expects 2 inputs .`factor`, `x`., but 1 were", [1]),
        (ValueError, r"shape at position 1 \(`x`\)", [1, [1.0]]),
        (TypeError, r"dtype at position 1 \(`x`\)", [1, [1, 2]]),
    ]:
        refused(error, message, embedded_runtime_call, inputs, context)
    embedded_runtime_stop(context)
    message = "`func` uses 0 infeeds and 0 outfeeds"
    refused(ValueError, message, experimental_application_compile_op, lambda x: x + 1, [1.0])
    four = make(4, frozen=False)
    replicas(1)
    message, inputs = "compiled for a device of 4 IPUs, but `/device:IPU:0` has 1", [1, [1.0, 2.0]]
    refused(ValueError, message, embedded_runtime_start_and_call, four, [1.0, weights], inputs, "app")
