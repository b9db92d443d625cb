"""A machine of known size, with nothing configured, for each test."""

import pytest

from tensorflow_ipu._base import environment
from tensorflow_ipu.config import reset_ipu_configuration

_VARIABLES = (environment.COUNT_VARIABLE, environment.DEVICES_VARIABLE, environment.FLAGS_VARIABLE)


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch):
    """Undoes every configuration; 64 IPUs and 8 devices are on offer."""
    for variable in _VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    environment.registered_devices.cache_clear()
    reset_ipu_configuration()
    yield
    reset_ipu_configuration()
    environment.registered_devices.cache_clear()
