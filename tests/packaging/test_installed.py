"""The installed distribution is the wheel: only the package with its library, for one platform."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest
import tensorflow as tf
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tensorflow_ipu._native import library


@pytest.fixture(scope="module")
def distribution() -> importlib.metadata.Distribution:
    return importlib.metadata.distribution("tensorflow-ipu")


def test_the_tests_run_against_the_installed_package_not_the_source_tree():
    spec = importlib.util.find_spec("tensorflow_ipu")
    assert spec is not None
    assert spec.origin is not None
    assert not Path(spec.origin).is_relative_to(Path(__file__).parents[2] / "tensorflow_ipu")


def test_wheel_has_the_package_with_its_library_record_and_type_marker_and_no_sources(distribution):
    files = [str(path) for path in distribution.files or () if "__pycache__" not in path.parts]
    of_package = ("__init__.py", "kernels/libtensorflow_ipu.so", "kernels/build_info.json", "py.typed")
    of_package += ("analysis/pages/page.html.jinja", "analysis/pages/page.css", "analysis/pages/page.js")
    assert {f"tensorflow_ipu/{name}" for name in of_package} <= set(files)
    outside = [file for file in files if not file.startswith("tensorflow_ipu/") and ".dist-info/" not in file]
    assert {Path(file).parts[-2:] for file in outside} <= {("bin", "tensorflow-ipu")}
    assert [file for file in files if file.endswith((".cc", ".h", ".o"))] == []


def test_wheel_is_for_one_platform_and_every_python(distribution):
    wheel = distribution.read_text("WHEEL") or ""
    tags = [line.removeprefix("Tag: ") for line in wheel.splitlines() if line.startswith("Tag: ")]
    assert "Root-Is-Purelib: false" in wheel
    assert len(tags) == 1
    assert tags[0].startswith("py3-none-manylinux_2_")


def test_library_is_built_for_the_tensorflow_that_is_installed_and_names_no_folder_of_the_machine(distribution):
    kernels = Path(str(distribution.locate_file("tensorflow_ipu/kernels")))
    built = (kernels / "libtensorflow_ipu.so").read_bytes()
    assert b"$ORIGIN/../../tensorflow" in built
    assert str(Path(__file__).parents[2]).encode() not in built
    info = json.loads((kernels / "build_info.json").read_text())
    assert sorted(info) == ["compiler", "python", "sha256", "supported", "tensorflow"]
    assert library.plain_version(info["tensorflow"]) == library.plain_version(tf.__version__)


def test_tensorflow_and_keras_are_extras_of_the_release_that_the_last_number_of_the_version_says(distribution):
    metadata = distribution.metadata
    release = ".".join(tf.__version__.split(".")[:2])
    assert distribution.version.endswith(f".{release.replace('.', '')}")
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist") or ()]
    assert [requirement.name for requirement in required if requirement.marker is None] == ["jinja2", "numpy"]

    def of_extra(**markers: str) -> list[tuple[str, SpecifierSet, set[str]]]:
        matching = [
            requirement
            for requirement in required
            if requirement.marker is not None and requirement.marker.evaluate(markers)
        ]
        return [(requirement.name, requirement.specifier, requirement.extras) for requirement in matching]

    for extra, name in (("cpu", "tensorflow-cpu"), ("gpu", "tensorflow")):
        own_extra = ("tensorflow-ipu", SpecifierSet(""), {"keras"})
        assert of_extra(extra=extra) == [(name, SpecifierSet(f"~={release}.0"), set()), own_extra]
    for python, release in (("3.10", ">=3.12,<3.13"), ("3.11", ">=3.15,<3.16"), ("3.13", ">=3.15,<3.16")):
        assert of_extra(extra="keras", python_version=python) == [("keras", SpecifierSet(release), set())]
    assert set(metadata.get_all("Provides-Extra") or ()) == {
        "cpu",
        "examples",
        "gpu",
        "keras",
        "keras2",
        "mpi",
        "report",
        "test",
    }
