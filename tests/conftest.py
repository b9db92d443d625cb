"""What all tests share: a quiet TensorFlow, a fresh system, scripts in processes of their own, deadlines, no thread left."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reads it when it is imported.
# Most of a test is the compilation of programs that run a few steps. XLA's older emitters make slower code in two thirds
# of the time, and without LLVM's optimizations in a fifth; XLA's own passes, which see whole programs, are all there.
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

# Until tests are collected: what they import stays, and would be looked at some thousand times.
gc.disable()

# Keras imports scikit-learn where that is installed, for its wrappers, which takes a second. It does without where the import
# fails: here as long as tests are collected, and in scripts by `quick_imports`.
_WITHOUT = "sklearn"
sys.modules.setdefault(_WITHOUT, None)  # pyright: ignore[reportArgumentType]

# The kernels name the threads that read datasets so; see `pump.cc`.
PUMP_THREADS = "ipu-pump"
# Threads of others that outlive their use on purpose.
LASTING_THREADS = ("tqdm_monitor", "pydevd", "pytest_timeout")
DEADLINE = 60.0  # Seconds.

# An example, and the making of one, takes as long as it takes beside whatever else the machine does; pytest has a deadline
# for the test. Each run tries the same examples, so that a change fails where it is made and not in a later run by chance;
# `--hypothesis-profile=search` looks for new ones.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=_SLOW, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, suppress_health_check=_SLOW)
hypothesis.settings.load_profile("tests")

# A shell that starts the tests in the background has them ignore Ctrl-C, which scripts and runs would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _native_threads() -> set[str]:
    """Numbers of the native threads of this process."""
    return set(os.listdir("/proc/self/task"))


def _pumps(threads: set[str]) -> list[str]:
    """Names those of these native threads that read datasets."""
    names = []
    for thread in threads:
        try:
            name = Path("/proc/self/task", thread, "comm").read_text().strip()
        except OSError:  # The thread ended meanwhile.
            continue
        if name.startswith(PUMP_THREADS):
            names.append(name)
    return names


def pytest_collection_finish() -> None:
    """Takes what tests import out of the collector's sight, which took half a second a look, and has it come less often."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    if sys.modules.get(_WITHOUT, sys) is None:
        del sys.modules[_WITHOUT]  # Examples use it.


def _wait(condition: Callable[[], bool], message: Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            pytest.fail(message())
        time.sleep(0.001)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """`until(condition)` returns when `condition()` holds, for what tells nobody; fails after a minute."""
    return lambda condition: _wait(condition, lambda: "the condition never came to hold")


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """`in_thread(call)` makes the call on a thread of its own, and returns its future. All threads must end in time."""
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
    """Makes a call on a thread of its own: `within(seconds, call)` returns or raises what it does, or fails in time."""

    def run(seconds: float, call: Callable[[], Any]) -> Any:
        future = in_thread(call)
        if not wait([future], seconds).done:
            pytest.fail(f"the call was not done after {seconds} s")
        return future.result()

    return run


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fails a test that leaves a thread behind: a Python one, or a pump that still reads a dataset."""
    before = set(threading.enumerate())
    native_before = _native_threads()
    yield

    def left() -> list[str]:
        python = [
            thread.name
            for thread in threading.enumerate()
            if thread not in before and not thread.name.startswith(LASTING_THREADS)
        ]
        return python + _pumps(_native_threads() - native_before)

    if left():
        gc.collect()  # A queue in a cycle, or in the traceback of a test that failed, still has its pump.
    _wait(lambda: not left(), lambda: f"the test leaves threads behind: {', '.join(left())}")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seeds what draws initial weights and data, so that a comparison within rounding has the same numbers in each run."""
    random.seed(1)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(1)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(1)


@pytest.fixture(autouse=True)
def fresh_system() -> Iterator[None]:
    """Nothing is configured before and after a test; tests of what needs no TensorFlow do not load it here."""

    def reset() -> None:
        if "tensorflow_ipu" in sys.modules:
            sys.modules["tensorflow_ipu"].config.reset_ipu_configuration()

    reset()
    yield
    reset()


def _checked(compare: Callable[[object, object], object]) -> Callable[[object, object], object]:
    def checked(one: object, other: object) -> object:
        caller = sys._getframe(1)
        if caller.f_code.co_filename.startswith(str(Path(sys.modules["tensorflow_ipu"].__file__ or "").parent)):
            raise AssertionError(
                f"{caller.f_code.co_filename}:{caller.f_lineno} compares tensors by `==` or `!=`, which is identity in the"
                " graphs of TensorFlow 1: use `tf.equal` or `tf.not_equal`"
            )
        return compare(one, other)

    return checked


_guarded: list[type] = []


@pytest.fixture(autouse=True)
def tensors_are_not_compared_by_operators() -> None:
    """Has each `==` between tensors fail that a test makes the package do: eagerly it works, and in other graphs not."""
    if "tensorflow_ipu" not in sys.modules or _guarded:
        return
    import tensorflow as tf

    _guarded.extend([tf.Tensor, tf.Variable])
    for kind in _guarded:
        for name in ("__eq__", "__ne__"):
            setattr(kind, name, _checked(getattr(kind, name)))


@pytest.fixture
def strategy() -> ipu.IPUStrategy:
    import tensorflow_ipu as ipu  # Here: tests that need no TensorFlow do not load it.

    return ipu.IPUStrategy()


@pytest.fixture
def configure() -> Callable[..., ipu.IPUConfig]:
    """Configures the system: how many IPUs each device has, and options by their path, with `__` for its dots."""
    import tensorflow_ipu as ipu

    def configured(*ipus: int, **options: object) -> ipu.IPUConfig:
        config = ipu.IPUConfig()
        config.auto_select_ipus = list(ipus) or [1]
        for path, value in options.items():
            *categories, name = path.split("__")
            setattr(functools.reduce(getattr, categories, config), name, value)
        ipu.config.reset_ipu_configuration()  # Where a test configures twice, a warning would fail it.
        config.configure_ipu_system()
        return config

    return configured


@pytest.fixture
def tap() -> Iterator[SimpleNamespace]:
    """`tap.dataset` has int32 scalars that come when `tap.put(1, 2)` says so; its reader waits outside of Python."""
    import tensorflow as tf

    values = tf.queue.FIFOQueue(1000, [tf.int32], [[]])
    dataset = tf.data.Dataset.range(10**9).map(lambda _: values.dequeue())
    yield SimpleNamespace(dataset=dataset, put=lambda *given: values.enqueue_many([list(given)]))
    values.close(cancel_pending_enqueues=True)


@pytest.fixture
def refused() -> Callable[..., None]:
    """`refused(error, words, call, *args, **kwargs)` expects such an error of a call, with these words."""

    def check(error: type[Exception], words: str, call: Callable[..., object], *args: object, **kwargs: object) -> None:
        with pytest.raises(error, match=words):
            call(*args, **kwargs)

    return check


@pytest.fixture
def compiled_text() -> Callable[..., str]:
    """`compiled_text(strategy, function, *args)` is what XLA makes of the program that the strategy would run, as text."""

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
    """`with compilations() as names:` has the names of the modules that XLA compiled in the block, after the block."""
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
    """`replicas(4)` configures a device of so many IPUs, and `replicas(4, 2)` two; the strategy of the first returns."""
    import tensorflow_ipu as ipu

    def made(*ipus: int, **options: object) -> ipu.IPUStrategy:
        configure(*ipus, **options)
        return ipu.IPUStrategy()

    return made


def _log_levels() -> dict[str, int]:
    """The levels of the package's loggers."""
    known = [name for name in logging.root.manager.loggerDict if name.startswith("tensorflow_ipu")]
    return {name: logging.getLogger(name).level for name in known}


RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def quick_imports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the environment of an interpreter has so that it imports TensorFlow sooner, by a fifth."""
    folder = tmp_path_factory.mktemp("without")
    (folder / f"{_WITHOUT}.py").write_text("raise ImportError('scripts of tests do without')\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


@pytest.fixture(scope="session")
def forking(quick_imports: Mapping[str, str]) -> Iterator[Forking]:
    # By its path: tests import nothing of each other.
    interpreter = runpy.run_path(str(Path(__file__).with_name("forked.py")))["Forking"](quick_imports)
    yield interpreter
    interpreter.close()


@pytest.fixture
def run_script(tmp_path: Path, forking: Forking) -> RunScript:
    """Runs dedented code in a process of its own, from an empty folder, where TensorFlow and Keras are imported already.

    `env` adds variables (None removes one), and with `check` a script that fails fails the test, with all it printed.
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
    """Runs a file as a script in this process, from an empty folder: `run_here(path, *arguments)` gives what it prints."""

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
            main.__dict__.clear()  # What TensorFlow keeps of its functions keeps none of its queues.
            for name in _log_levels():
                logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))
        return capsys.readouterr().out.splitlines()

    return run


class _Allocated(ctypes.Structure):
    """What `mallinfo2` of glibc returns: ten sizes, among them what is mapped, and what is in use of all else."""

    _fields_ = [
        ("_before", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),
        ("_between", ctypes.c_size_t * 2),
        ("in_use", ctypes.c_size_t),
        ("_after", ctypes.c_size_t * 2),
    ]


@pytest.fixture
def check_growth() -> Callable[[Callable[[], object], int], None]:
    """`check_growth(call, limit)` fails if each of three calls leaves `limit` bytes or more allocated behind."""
    library = ctypes.CDLL(None)  # What is resident would depend on what malloc keeps of freed blocks.
    library.mallinfo2.restype = _Allocated

    def allocated() -> int:
        gc.collect()
        found = library.mallinfo2()
        return found.mapped + found.in_use

    def check(call: Callable[[], object], limit: int) -> None:
        grown = []
        for _ in range(3):
            before = allocated()
            call()
            grown.append(allocated() - before)
            if grown[-1] < limit:
                return
        pytest.fail(f"three calls left {grown} bytes behind, and less than {limit} were expected")

    return check


class _Page(html.parser.HTMLParser):
    """Reads a page strictly: what is open, which ids there are, which addresses, and the cells of tables."""

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
