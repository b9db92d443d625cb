"""Compiles and links the kernels for aarch64, with warnings as errors: `make cross-check`.

It links against TensorFlow's wheel for aarch64. Nothing is run, because that needs such a processor. The compiler is Debian's
`g++-12-aarch64-linux-gnu`.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from build_tools import kernels

FOLDER = Path("build", "cross")
PLATFORMS = ("manylinux_2_27_aarch64", "manylinux_2_17_aarch64")  # The platforms of TensorFlow's wheels.


def main() -> None:
    """Compiles and links the kernels."""
    os.environ["WERROR"] = "1"
    os.environ.setdefault("CXX", "aarch64-linux-gnu-g++-12")
    tensorflow, compiler = _tensorflow(), kernels.find_compiler()
    system = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    library = kernels.compile_library(tensorflow, compiler, FOLDER / "objects", system)
    print(f"{library} compiles and links for aarch64 with TensorFlow {tensorflow.version}: {compiler.version}")


def _tensorflow() -> kernels.TensorFlow:
    """Returns the unpacked wheel for aarch64 of the installed version. The first call downloads about 280 MB."""
    version = kernels.find_tensorflow().version
    folder = FOLDER / version
    if not folder.exists():
        print("Downloading the wheel of TensorFlow for aarch64", flush=True)
        command = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--only-binary", ":all:"]
        command += [argument for platform in PLATFORMS for argument in ("--platform", platform)]
        subprocess.run([*command, "--dest", str(FOLDER), f"tensorflow=={version}"], check=True)
        (wheel,) = FOLDER.glob(f"tensorflow-{version}-*.whl")
        scratch = FOLDER / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            prefixes = ("tensorflow/include/", "tensorflow/libtensorflow_")
            archive.extractall(scratch, [name for name in names if name.startswith(prefixes)])
        wheel.unlink()
        scratch.rename(folder)
    return kernels.TensorFlow((folder / "tensorflow").absolute(), version)


if __name__ == "__main__":
    try:
        main()
    except kernels.KernelBuildError as exc:
        sys.exit(f"error: {exc}")
