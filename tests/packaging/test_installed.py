"""What is installed is the wheel: the package with its library, for one platform, and nothing besides."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from email.message import Message
from pathlib import Path

import pytest
import tensorflow as tf
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tensorflow_ipu._native import library


@pytest.fixture(scope="module")
def distribution() -> importlib.metadata.Distribution:
    return importlib.metadata.distribution("tensorflow-ipu")


@pytest.fixture(scope="module")
def files(distribution: importlib.metadata.Distribution) -> list[str]:
    """The files of the wheel; what the interpreter adds on its own is left out."""
    return [str(path) for path in distribution.files or () if "__pycache__" not in path.parts]


@pytest.fixture(scope="module")
def metadata(distribution: importlib.metadata.Distribution) -> Message:
    return distribution.metadata  # type: ignore[return-value]


def test_the_tests_run_against_the_installed_package_not_the_source_tree():
    spec = importlib.util.find_spec("tensorflow_ipu")
    assert spec is not None
    assert spec.origin is not None
    assert not Path(spec.origin).is_relative_to(Path(__file__).parents[2] / "tensorflow_ipu")


def test_wheel_has_the_library_its_record_and_the_type_marker(files: list[str]):
    assert {
        "tensorflow_ipu/__init__.py",
        "tensorflow_ipu/kernels/libtensorflow_ipu.so",
        "tensorflow_ipu/kernels/build_info.json",
        "tensorflow_ipu/py.typed",
    } <= set(files)


def test_wheel_has_no_folder_but_the_package_and_its_metadata(files: list[str]):
    tops = {file.partition("/")[0] for file in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tensorflow_ipu"}


def test_wheel_has_no_native_sources(files: list[str]):
    assert [file for file in files if file.endswith((".cc", ".h", ".o"))] == []


def test_wheel_is_for_one_platform_and_every_python(distribution: importlib.metadata.Distribution):
    wheel = distribution.read_text("WHEEL") or ""
    tags = [line.removeprefix("Tag: ") for line in wheel.splitlines() if line.startswith("Tag: ")]
    assert "Root-Is-Purelib: false" in wheel
    assert len(tags) == 1
    assert tags[0].startswith("py3-none-linux_")


def test_library_names_no_folder_of_the_machine_that_built_it(distribution: importlib.metadata.Distribution):
    library = Path(str(distribution.locate_file("tensorflow_ipu/kernels/libtensorflow_ipu.so"))).read_bytes()
    assert b"$ORIGIN/../../tensorflow" in library
    assert str(Path(__file__).parents[2]).encode() not in library


def test_library_is_built_for_the_tensorflow_that_is_installed(distribution: importlib.metadata.Distribution):
    info = json.loads(Path(str(distribution.locate_file("tensorflow_ipu/kernels/build_info.json"))).read_text())
    assert sorted(info) == ["compiler", "python", "sha256", "tensorflow"]
    assert library.plain_version(info["tensorflow"]) == library.plain_version(tf.__version__)


def test_tensorflow_is_no_hard_requirement(metadata: Message):
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist") or ()]
    assert [requirement.name for requirement in required if requirement.marker is None] == ["numpy"]


@pytest.mark.parametrize(("extra", "name"), [("cpu", "tensorflow-cpu"), ("gpu", "tensorflow")])
def test_extras_name_the_tensorflow_that_the_kernels_are_written_for(metadata: Message, extra: str, name: str):
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist") or ()]
    of_extra = [each for each in required if each.marker is not None and each.marker.evaluate({"extra": extra})]
    assert [(each.name, str(each.specifier), each.extras) for each in of_extra] == [
        (name, "~=2.21.0", set()),
        ("tensorflow-ipu", "", {"keras"}),
    ]


@pytest.mark.parametrize(
    ("python", "release"), [("3.10", ">=3.12,<3.13"), ("3.11", ">=3.15,<3.16"), ("3.13", ">=3.15,<3.16")]
)
def test_keras_is_of_the_release_that_the_package_knows(metadata: Message, python: str, release: str):
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist") or ()]
    here = {"extra": "keras", "python_version": python}
    known = [each for each in required if each.marker is not None and each.marker.evaluate(here)]
    assert [(each.name, each.specifier) for each in known] == [("keras", SpecifierSet(release))]


def test_extras_are_those_that_users_are_told_of(metadata: Message):
    assert set(metadata.get_all("Provides-Extra") or ()) == {"cpu", "examples", "gpu", "keras", "report", "test"}
