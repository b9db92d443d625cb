"""The state knows which devices exist, and changes only when nothing runs."""

import threading

import pytest

from tensorflow_ipu.config import IPUConfig
from tensorflow_ipu.config._checks import resolve
from tensorflow_ipu.config._state import ConfiguredSystem
from tensorflow_ipu.errors import NotConfiguredError


def _records(*ipus):
    config = IPUConfig()
    config.auto_select_ipus = ipus
    return resolve(config)


def test_listener_hears_of_every_change_and_another_configuration_waits():
    heard, waits = [], []
    system = ConfiguredSystem()
    with pytest.raises(NotConfiguredError, match=r"only `/device:IPU:0`.*`IPUConfig.auto_select_ipus` at least 2"):
        system.ipus_of_device(1)
    system.set_device_listener(lambda ipus, _: heard.append(tuple(ipus)))
    system.on_idle_wait(lambda: waits.append(system.ipus()))
    system.configure(_records(2, 4))
    system.configure(_records(2, 4), reset_configuration=False)
    system.configure(_records(3))
    assert waits == [(1,), (2, 4)]
    system.reset()
    system.reset()
    assert heard == [(1,), (2, 4), (1,), (3,), (1,)]
    system.set_device_listener(None)
    system.configure(_records(3))
    assert heard[-1] == (1,)


def test_listener_that_fails_leaves_the_configuration_as_it_was(refused):
    def fail(ipus, connections):
        del connections
        if tuple(ipus) == (2,):
            raise OSError("no")

    system = ConfiguredSystem()
    system.set_device_listener(fail)
    refused(OSError, "no", system.configure, _records(2))
    assert system.records() == ()
    system.configure(_records(3))
    assert system.ipus() == (3,)


def test_reset_waits_until_idle_and_readers_do_not_wait_for_it():
    system = ConfiguredSystem()
    system.configure(_records(2))
    waiting, idle = threading.Event(), threading.Event()

    @system.on_idle_wait
    def wait():
        waiting.set()
        assert idle.wait(timeout=60)

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


def test_changes_of_several_threads_do_not_interleave():
    system = ConfiguredSystem()
    busy = threading.Lock()
    clashes = []

    @system.on_idle_wait
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

    system.set_device_listener(listen)
    shapes = [_records(*[n] * n) for n in (1, 2, 3, 4)]
    threads = [threading.Thread(target=lambda s=shape: [system.configure(s) for _ in range(20)]) for shape in shapes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert clashes == []
    assert system.records() in shapes
