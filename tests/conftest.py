"""Fixtures of all tests: an unconfigured system, scripts in separate processes, deadlines, a check for threads."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reads it when it is imported.
# Most of a test's time goes into compiling programs that run a few steps. XLA's older emitters compile in two thirds of
# the time, and without LLVM's optimizations in a fifth, but the code is slower. All passes of XLA still run.
# `make test-numbers` and the scripts of `compat` compile as users do.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 --xla_backend_optimization_level=0",
)

import ctypes
import functools
import gc
import html.parser
import logging
import random
import runpy
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from forked import Forking

    import tensorflow_ipu as ipu

# Imported objects are never freed. The garbage collector would visit them thousands of times while tests are collected.
gc.disable()

# If scikit-learn is installed, Keras imports it for its wrappers, which takes a second. Keras works without it, so its
# import fails while tests are collected, and in scripts with `quick_imports`.
_SKIPPED_PACKAGE = "sklearn"
sys.modules.setdefault(_SKIPPED_PACKAGE, None)  # pyright: ignore[reportArgumentType]

# The name of the threads that read datasets, from `pump.cc`.
PUMP_THREADS = "ipu-pump"
# Threads of other packages that are meant to run until the process ends.
LASTING_THREADS = ("tqdm_monitor", "pydevd", "pytest_timeout")
DEADLINE = 60.0  # Seconds.

# Examples have no deadline, because other work may slow the machine down; pytest has a deadline for the test. Each run
# tries the same examples, so that a test fails because of a change and not by chance. `--hypothesis-profile=search`
# tries new ones.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=_SLOW, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, suppress_health_check=_SLOW)
hypothesis.settings.load_profile("tests")

# A shell makes background processes ignore Ctrl-C. Scripts and runs of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _native_threads() -> set[str]:
    """Returns the ids of the native threads of this process."""
    return set(os.listdir("/proc/self/task"))


def _pumps(threads: set[str]) -> list[str]:
    """Returns the names of the native threads that read datasets."""
    names = []
    for thread in threads:
        try:
            name = Path("/proc/self/task", thread, "comm").read_text().strip()
        except OSError:  # The thread has ended.
            continue
        if name.startswith(PUMP_THREADS):
            names.append(name)
    return names


def pytest_collection_finish() -> None:
    """Excludes imported objects from garbage collection, which took half a second, and makes it run less often."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    if sys.modules.get(_SKIPPED_PACKAGE, sys) is None:
        del sys.modules[_SKIPPED_PACKAGE]  # Examples use scikit-learn.


def _wait(condition: Callable[[], bool], message: Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            pytest.fail(message())
        time.sleep(0.001)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """`until(condition)` polls until `condition()` is true, and fails after a minute."""
    return lambda condition: _wait(condition, lambda: "the condition never became true")


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """`in_thread(call)` makes the call on a new thread and returns its future. Threads must end within a minute."""
    threads = []

    def run(call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                result = call()
            except BaseException as exc:
                future.set_exception(exc)
            else:
                future.set_result(result)

        thread = threading.Thread(target=work, daemon=True)
        threads.append(thread)
        thread.start()
        return future

    yield run
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


@pytest.fixture
def within(in_thread: Callable[[Callable[[], Any]], Future[Any]]) -> Callable[[float, Callable[[], Any]], Any]:
    """`within(seconds, call)` makes the call on a new thread and returns its result; fails if it takes longer."""

    def run(seconds: float, call: Callable[[], Any]) -> Any:
        future = in_thread(call)
        if not wait([future], seconds).done:
            pytest.fail(f"the call was not done after {seconds} s")
        return future.result()

    return run


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fails a test that leaves a Python thread behind, or a pump that still reads a dataset."""
    earlier = set(threading.enumerate())
    native_before = _native_threads()
    yield

    def left() -> list[str]:
        python = [
            thread.name
            for thread in threading.enumerate()
            if thread not in earlier and not thread.name.startswith(LASTING_THREADS)
        ]
        return python + _pumps(_native_threads() - native_before)

    if left():
        gc.collect()  # A queue in a reference cycle, or in the traceback of a failed test, still has its pump.
    _wait(lambda: not left(), lambda: f"the test leaves threads behind: {', '.join(left())}")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seeds all random generators, so that comparisons up to rounding have the same values in each run."""
    random.seed(1)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(1)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(1)


@pytest.fixture(autouse=True)
def fresh_system() -> Iterator[None]:
    """Resets the configuration before and after a test, without importing TensorFlow for tests that do not."""

    def reset() -> None:
        if "tensorflow_ipu" in sys.modules:
            sys.modules["tensorflow_ipu"].config.reset_ipu_configuration()

    reset()
    yield
    reset()


def _checked(compare: Callable[[object, object], object]) -> Callable[[object, object], object]:
    def checked(first: object, second: object) -> object:
        caller = sys._getframe(1)
        if caller.f_code.co_filename.startswith(str(Path(sys.modules["tensorflow_ipu"].__file__ or "").parent)):
            raise AssertionError(
                f"{caller.f_code.co_filename}:{caller.f_lineno} compares tensors by `==` or `!=`, which is identity in the"
                " graphs of TensorFlow 1: use `tf.equal` or `tf.not_equal`"
            )
        return compare(first, second)

    return checked


_guarded: list[type] = []


@pytest.fixture(autouse=True)
def tensors_are_not_compared_by_operators() -> None:
    """Makes each `==` between tensors in the package fail, since it compares identities in graphs of TensorFlow 1."""
    if "tensorflow_ipu" not in sys.modules or _guarded:
        return
    import tensorflow as tf

    _guarded.extend([tf.Tensor, tf.Variable])
    for kind in _guarded:
        for name in ("__eq__", "__ne__"):
            setattr(kind, name, _checked(getattr(kind, name)))


@pytest.fixture
def strategy() -> ipu.IPUStrategy:
    import tensorflow_ipu as ipu  # The import is here, so that tests without TensorFlow do not load it.

    return ipu.IPUStrategy()


@pytest.fixture
def configure() -> Callable[..., ipu.IPUConfig]:
    """`configure(2, 4, io_tiles__num_io_tiles=8)` configures devices of 2 and 4 IPUs, and options by their path."""
    import tensorflow_ipu as ipu

    def configured(*ipus: int, **options: object) -> ipu.IPUConfig:
        config = ipu.IPUConfig()
        config.auto_select_ipus = list(ipus) or [1]
        for path, value in options.items():
            *categories, name = path.split("__")
            setattr(functools.reduce(getattr, categories, config), name, value)
        ipu.config.reset_ipu_configuration()  # Without it, a second configuration in the same test would warn and fail.
        config.configure_ipu_system()
        return config

    return configured


@pytest.fixture
def tap() -> Iterator[SimpleNamespace]:
    """`tap.dataset` yields the int32 scalars of `tap.put(1, 2)`; its reader waits for them outside of Python."""
    import tensorflow as tf

    values = tf.queue.FIFOQueue(1000, [tf.int32], [[]])
    dataset = tf.data.Dataset.range(10**9).map(lambda _: values.dequeue())
    yield SimpleNamespace(dataset=dataset, put=lambda *numbers: values.enqueue_many([list(numbers)]))
    values.close(cancel_pending_enqueues=True)


@pytest.fixture
def refused() -> Callable[..., None]:
    """`refused(error, message, call, *args, **kwargs)` expects that the call raises `error` with a matching message."""

    def check(
        error: type[Exception], message: str, call: Callable[..., object], *args: object, **kwargs: object
    ) -> None:
        with pytest.raises(error, match=message):
            call(*args, **kwargs)

    return check


@pytest.fixture
def compiled_text() -> Callable[..., str]:
    """`compiled_text(strategy, function, *args)` returns the optimized HLO of the program of the function."""

    def text(strategy: ipu.IPUStrategy, function: Any, *args: object) -> str:
        import tensorflow as tf

        from tensorflow_ipu._tensorflow import functions

        device = strategy.extended.ipu_device
        with tf.device(device):
            program = strategy.prepare(function, args).program
            return functions.hlo_of(program.function, program.inputs, device, "optimized_hlo").decode()

    return text


@pytest.fixture
def compilations() -> Callable[[], AbstractContextManager[list[str]]]:
    """`with compilations() as names:` adds the names of the modules that XLA compiled in the block, at its end."""
    from tensorflow.python.profiler.internal import _pywrap_profiler
    from tensorflow.tsl.profiler.protobuf import trace_events_pb2

    message: Any = trace_events_pb2.Trace  # pyright: ignore[reportAttributeAccessIssue]

    @contextmanager
    def watch() -> Iterator[list[str]]:
        names: list[str] = []
        session = _pywrap_profiler.ProfilerSession()
        session.start("", {"host_tracer_level": 2, "python_tracer_level": 0, "device_tracer_level": 0})
        try:
            yield names
        finally:
            events = message.FromString(session.stop()).trace_events
        names += [event.args["name"] for event in events if event.name == "CpuCompiler::RunBackend"]

    return watch


@pytest.fixture
def replicas(configure: Callable[..., ipu.IPUConfig]) -> Callable[..., ipu.IPUStrategy]:
    """`replicas(4, 2)` configures devices with 4 and 2 IPUs, and returns the strategy of the first device."""
    import tensorflow_ipu as ipu

    def make_strategy(*ipus: int, **options: object) -> ipu.IPUStrategy:
        configure(*ipus, **options)
        return ipu.IPUStrategy()

    return make_strategy


def _log_levels() -> dict[str, int]:
    """Returns the levels of the package's loggers."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("tensorflow_ipu")]
    return {name: logging.getLogger(name).level for name in names}


RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def quick_imports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with which an interpreter imports TensorFlow in a fifth less time."""
    folder = tmp_path_factory.mktemp("without")
    (folder / f"{_SKIPPED_PACKAGE}.py").write_text("raise ImportError('scripts of tests do without')\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


@pytest.fixture(scope="session")
def forking(quick_imports: Mapping[str, str]) -> Iterator[Forking]:
    # It is loaded by its path, because tests do not import each other.
    interpreter = runpy.run_path(str(Path(__file__).with_name("forked.py")))["Forking"](quick_imports)
    yield interpreter
    interpreter.close()


@pytest.fixture
def run_script(tmp_path: Path, forking: Forking) -> RunScript:
    """`run_script(code)` runs dedented code in an empty folder and a new process that has TensorFlow and Keras.

    `env` adds variables, or removes those that are None. If `check`, a script that fails also fails the test.
    """

    def run(
        code: str,
        *arguments: str,
        timeout: float = 300,
        env: Mapping[str, str | None] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        done = forking.run(script, *arguments, timeout=timeout, env=env)
        if check and done.returncode != 0:
            pytest.fail(f"the script ended with {done.returncode}; it printed:\n{done.stdout}\n{done.stderr}")
        return done

    return run


@pytest.fixture
def run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """`run_here(path, *arguments)` runs a script in this process, in an empty folder, and returns the printed lines."""

    def run(path: Path, *arguments: str) -> list[str]:
        folder = tmp_path / "empty"
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        if "keras" in sys.modules:
            sys.modules["keras"].backend.clear_session(free_memory=False)
        capsys.readouterr()
        main = ModuleType("__main__")
        main.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "__main__", main)
        levels = _log_levels()
        try:
            exec(compile(path.read_text(), str(path), "exec"), main.__dict__)
        finally:
            main.__dict__.clear()  # TensorFlow keeps the script's functions alive, but must not keep its queues.
            for name in _log_levels():
                logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))
        return capsys.readouterr().out.splitlines()

    return run


class _Allocated(ctypes.Structure):
    """The result of `mallinfo2` of glibc: ten sizes, such as the bytes in mapped blocks and in other used blocks."""

    _fields_ = [
        ("_before", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),
        ("_between", ctypes.c_size_t * 2),
        ("in_use", ctypes.c_size_t),
        ("_after", ctypes.c_size_t * 2),
    ]


@pytest.fixture
def check_growth() -> Callable[[Callable[[], object], int], None]:
    """`check_growth(call, limit)` fails if each of three calls leaves at least `limit` bytes allocated."""
    library = ctypes.CDLL(None)  # Resident memory would include freed blocks that malloc keeps.
    library.mallinfo2.restype = _Allocated

    def allocated() -> int:
        gc.collect()
        usage = library.mallinfo2()
        return usage.mapped + usage.in_use

    def check(call: Callable[[], object], limit: int) -> None:
        grown = []
        for _ in range(3):
            start = allocated()
            call()
            grown.append(allocated() - start)
            if grown[-1] < limit:
                return
        pytest.fail(f"three calls left {grown} bytes behind, and less than {limit} were expected")

    return check


class _Page(html.parser.HTMLParser):
    """A strict reader of an HTML page: its open elements, ids, addresses, and the number of each element."""

    VOID = frozenset(("meta", "br", "hr", "img", "input", "link", "path", "use"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str | None] = []
        self.addresses: list[str | None] = []
        self.elements: dict[str, int] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] = self.elements.get(tag, 0) + 1
        self.ids += [value for name, value in attrs if name == "id"]
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture
def read_page() -> type[_Page]:
    return _Page
