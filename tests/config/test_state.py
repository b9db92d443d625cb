"""The configured system has the existing devices, and changes only while no program runs."""

import threading
from types import SimpleNamespace

import pytest

from tensorflow_ipu._base import active_runs
from tensorflow_ipu.config import IPUConfig
from tensorflow_ipu.config._checks import resolve
from tensorflow_ipu.config._state import ConfiguredSystem
from tensorflow_ipu.errors import NotConfiguredError


def _records(*ipus):
    config = IPUConfig()
    config.auto_select_ipus = ipus
    return resolve(config)


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """Replaces the kernels, of which there is only one configuration in a process."""
    names = ("set_devices", "set_options", "set_seed", "forget_seeds", "global_seed")
    fake_kernels = SimpleNamespace(**dict.fromkeys(names, lambda *_: None))
    monkeypatch.setattr(ConfiguredSystem, "_kernels", fake_kernels)
    return fake_kernels


def test_kernels_hear_of_every_change_and_another_configuration_waits(kernels, monkeypatch):
    configured, waits = [], []
    system = ConfiguredSystem()
    with pytest.raises(NotConfiguredError, match=r"only `/device:IPU:0`.*`IPUConfig.auto_select_ipus` to at least 2"):
        system.ipus_of_device(1)
    kernels.set_devices = lambda ipus, connections: configured.append(tuple(ipus))
    monkeypatch.setattr(active_runs, "wait_until_idle", lambda: waits.append(system.ipus()))
    system.tell_kernels()
    system.configure(_records(2, 4))
    system.configure(_records(2, 4), reset_configuration=False)
    system.configure(_records(3))
    assert waits == [(1,), (2, 4)]
    system.reset()
    system.reset()
    assert configured == [(1,), (2, 4), (1,), (3,), (1,)]


def test_kernels_that_fail_leave_the_configuration_as_it_was(refused, kernels):
    def fail(ipus, connections):
        del connections
        if tuple(ipus) == (2,):
            raise OSError("no")

    system = ConfiguredSystem()
    kernels.set_devices = fail
    refused(OSError, "no", system.configure, _records(2))
    assert system.records() == ()
    system.configure(_records(3))
    assert system.ipus() == (3,)


def test_reset_waits_until_idle_and_readers_do_not_wait_for_it(monkeypatch):
    system = ConfiguredSystem()
    system.configure(_records(2))
    waiting, idle = threading.Event(), threading.Event()

    def wait():
        waiting.set()
        assert idle.wait(timeout=60)

    monkeypatch.setattr(active_runs, "wait_until_idle", wait)
    resetting = threading.Thread(target=system.reset)
    resetting.start()
    try:
        assert waiting.wait(timeout=60)
        assert system.ipus() == (2,)
    finally:
        idle.set()
        resetting.join(timeout=60)
    assert not resetting.is_alive()
    assert system.records() == ()


def test_changes_of_several_threads_do_not_interleave(kernels, monkeypatch):
    system = ConfiguredSystem()
    busy = threading.Lock()
    clashes = []

    def wait():
        if not busy.acquire(blocking=False):
            clashes.append("two changes at once")
        else:
            busy.release()

    def listen(ipus, connections):
        del connections
        with busy:
            if len(set(ipus)) != 1:
                clashes.append(f"mixed devices {tuple(ipus)}")

    kernels.set_devices = listen
    monkeypatch.setattr(active_runs, "wait_until_idle", wait)
    shapes = [_records(*[n] * n) for n in (1, 2, 3, 4)]
    threads = [threading.Thread(target=lambda s=shape: [system.configure(s) for _ in range(20)]) for shape in shapes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert clashes == []
    assert system.records() in shapes
