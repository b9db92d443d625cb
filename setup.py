"""Builds `tensorflow_ipu` with setuptools, which gets an additional command that builds the kernel library."""

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
    """Updates the kernel library in the source tree."""

    description = "build the C++ kernels against the installed TensorFlow"
    user_options: ClassVar[list[tuple[str, str, str]] | list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None:
        """Does nothing, because the command has no options."""

    def finalize_options(self) -> None:
        """Does nothing, because the command has no options."""

    def run(self) -> None:
        """Builds the library; raises CompileError with the reason if that fails."""
        try:
            kernels.build()
        except kernels.KernelBuildError as exc:
            raise CompileError(str(exc)) from exc


class BuildPackage(build_py):
    """Collects the files of the package after building the kernel library, which is one of them."""

    def run(self) -> None:
        """Collects the files in an empty folder, so that the wheel contains no deleted modules."""
        self.run_command("build_kernels")
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class NativeDistribution(Distribution):
    """A distribution that setuptools installs as a native one, although it has no extension modules."""

    def has_ext_modules(self) -> bool:
        """Returns True, because the kernel library is native code too."""
        return True


class BuildWheel(bdist_wheel):
    """A wheel for one platform and all versions of Python: the kernel library does not use Python's ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the tag for any Python 3, no Python ABI, and the platform of this machine."""
        _, _, platform = super().get_tag()
        return "py3", "none", platform


def extras(release: str) -> dict[str, list[str]]:
    """Returns the requirements of each extra, for a release of TensorFlow."""
    return {
        # TensorFlow is an extra, because `tensorflow-cpu` and `tensorflow` cannot be installed together.
        "cpu": [f"tensorflow-cpu~={release}.0", "tensorflow-ipu[keras]"],
        "gpu": [f"tensorflow~={release}.0", "tensorflow-ipu[keras]"],
        # `tf_keras` requires `tensorflow`. To use it with `tensorflow-cpu`, install it with `--no-deps`.
        "keras2": [f"tf_keras~={release}.0"],
        # The same versions as in `keras/_version.py`. Keras 3.12 is the last release for Python 3.10.
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
            "selenium>=4.30",  # For tests of the site, on machines with Chromium and chromedriver.
            "setuptools>=77",  # For tests that run `setup.py`; Python may include an older version.
            "tensorboard>=2.20",
            "tensorflow-probability>=0.25",  # For scripts of 2021 that sample from distributions.
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
    # The last number is the release of TensorFlow: `0.1.0.221` for 2.21. PyPI does not accept `0.1.0+tf2.21`. If a user
    # also requests a version of TensorFlow, pip can select the wheel for this version.
    version=f"0.1.0.{RELEASE.replace('.', '')}",
    extras_require=extras(RELEASE),
    distclass=NativeDistribution,
    cmdclass={"build_kernels": BuildKernels, "build_py": BuildPackage, "bdist_wheel": BuildWheel},
)
