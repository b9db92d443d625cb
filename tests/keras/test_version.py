"""The Keras that is installed is one that the package knows, or it says which one is."""

import importlib.metadata
import re
import sys

import keras
import pytest

from tensorflow_ipu.errors import LibraryError
from tensorflow_ipu.keras import _version


def test_the_installed_keras_is_known():
    assert _version.installed() == keras.__version__
    _version.check(keras.__version__)


def test_a_program_without_keras_needs_none():
    _version.check(None)


@pytest.mark.parametrize("version", ["2.15.0", "3.11.3", "3.14.0", "3.16.0", "3.16.0.dev20260101", "4.0"])
def test_another_keras_is_refused_with_the_one_to_install(version):
    with pytest.raises(LibraryError, match=rf"Keras `{version}` is installed.*pip install 'keras>=3\.\d+,<3\.\d+'"):
        _version.check(version)


def test_the_extras_ask_for_the_releases_that_the_check_knows():
    asked = [line for line in importlib.metadata.requires("tensorflow-ipu") or [] if line.startswith("keras")]
    old = [line for line in asked if "<" in line.partition(";")[2] and "3.11" in line]
    new = [line for line in asked if ">=" in line.partition(";")[2]]
    [mine] = old if sys.version_info < (3, 11) else new
    first, end = (".".join(map(str, bound)) for bound in (_version.FIRST, _version.END))
    assert set(re.split(r",\s*", mine.partition(";")[0].removeprefix("keras"))) == {f">={first}", f"<{end}"}
