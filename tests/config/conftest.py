"""A machine of known size for each test."""

import pytest

from tensorflow_ipu._base import environment

_VARIABLES = (environment.COUNT_VARIABLE, environment.DEVICES_VARIABLE, environment.FLAGS_VARIABLE)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Provides the default machine: 64 IPUs and 8 devices."""
    for variable in _VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    environment.registered_devices.cache_clear()
    yield
    environment.registered_devices.cache_clear()
