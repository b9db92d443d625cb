"""The build of `tensorflow_ipu`: setuptools, and one command more, which builds the kernel library."""

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


os.chdir(Path(__file__).resolve().parent)
setup(
    distclass=NativeDistribution,
    cmdclass={"build_kernels": BuildKernels, "build_py": BuildPackage, "bdist_wheel": BuildWheel},
)
