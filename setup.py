"""The build of `tensorflow_ipu`: setuptools, and one command more, which builds the kernel library."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

from build_tools import kernels


class BuildKernels(Command):
    """Brings the kernel library in the source tree up to date."""

    description = "build the C++ kernels against the installed TensorFlow"
    user_options: ClassVar[list[tuple[str, str, str]] | list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None:
        """Does nothing: there are no options."""

    def finalize_options(self) -> None:
        """Does nothing: there are no options."""

    def run(self) -> None:
        """Builds the library, or says in words why not."""
        try:
            kernels.build()
        except kernels.KernelBuildError as exc:
            raise CompileError(str(exc)) from exc


class BuildPackage(build_py):
    """Builds the kernel library before it gathers the package, of which the library is data."""

    def run(self) -> None:
        """Gathers the package afresh, so that a module that was deleted leaves the wheel too."""
        self.run_command("build_kernels")
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class NativeDistribution(Distribution):
    """A distribution that goes where native ones go, though setuptools knows of no extension module in it."""

    def has_ext_modules(self) -> bool:
        """Says so, on behalf of the kernel library."""
        return True


class BuildWheel(bdist_wheel):
    """A wheel for one platform and every Python: the library is native, and does not use Python's ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        """Names no Python ABI, and the platform of the machine that builds."""
        _, _, platform = super().get_tag()
        return "py3", "none", platform


def extras(release: str) -> dict[str, list[str]]:
    """What the extras install beside a release of TensorFlow."""
    return {
        # TensorFlow is an extra, since its CPU and GPU wheels are two packages that must not meet.
        "cpu": [f"tensorflow-cpu~={release}.0", "tensorflow-ipu[keras]"],
        "gpu": [f"tensorflow~={release}.0", "tensorflow-ipu[keras]"],
        # `tf_keras` asks for the package `tensorflow`; beside `tensorflow-cpu` it is installed with `--no-deps`.
        "keras2": [f"tf_keras~={release}.0"],
        # As in `keras/_version.py`. Keras 3.12 is the last for Python 3.10.
        "keras": ["keras>=3.12,<3.13; python_version < '3.11'", "keras>=3.15,<3.16; python_version >= '3.11'"],
        "test": [
            "argcomplete>=3.5",
            "hypothesis>=6.100",
            "ipykernel>=6.29",
            "jupytext>=1.16",
            "mpi4py>=4.1",
            "nbclient>=0.10",
            "pyelftools>=0.31",
            "pytest>=8.4",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "selenium>=4.30",  # Tests of the site, where Chromium and chromedriver are.
            "setuptools>=77",  # Tests run `setup.py`, and a Python comes with what setuptools was when it was made.
            "tensorboard>=2.20",
            "tensorflow-probability>=0.25",  # Which programs of 2021 draw from.
            "tensorflow-ipu[examples]",
            "tensorflow-ipu[mpi]",
        ],
        "examples": ["matplotlib>=3.8", "scikit-learn>=1.4", "tqdm>=4.66"],
        "mpi": ["mpich>=5,<6"],
        "report": ["matplotlib>=3.8"],
    }


os.chdir(Path(__file__).resolve().parent)
RELEASE = kernels.release()
setup(
    # The last number says which TensorFlow the kernels are for. PyPI takes no `0.1.0+tf2.21`; and by a number pip finds the
    # wheel that fits a TensorFlow that is asked for with it.
    version=f"0.1.0.{RELEASE.replace('.', '')}",
    extras_require=extras(RELEASE),
    distclass=NativeDistribution,
    cmdclass={"build_kernels": BuildKernels, "build_py": BuildPackage, "bdist_wheel": BuildWheel},
)
