"""The build backend: setuptools, with TensorFlow and CMake as requirements of wheels, but not of source archives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from setuptools import build_meta

from build_tools.kernels import TENSORFLOW_REQUIREMENT

# Older Pythons have no such TensorFlow. Without the marker, pip would fail here before it names the required Python.
_TOOLS = [f"{TENSORFLOW_REQUIREMENT}; python_version >= '3.10'", "cmake>=3.29", "ninja>=1.11"]

build_editable = build_meta.build_editable
build_sdist = build_meta.build_sdist
build_wheel = build_meta.build_wheel
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the requirements of an isolated build of a wheel."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_TOOLS]


def get_requires_for_build_editable(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the requirements of an isolated build of an editable installation."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_TOOLS]
