"""Includes of the kernels follow their architecture: files include only headers of lower folders."""

import pathlib
import re

KERNELS = pathlib.Path(__file__).parents[1] / "tensorflow_ipu" / "kernels"

# The folders; each may include from the folders after it.
CORE = ["queues", "collectives", "numerics", "support"]
LAYERS = [*"control ops lowering precision ffi device replicas feeds host".split(), *CORE]  # noqa: SIM905

# The folders that may read the headers of XLA's compiler, which take most of the time of a build.
COMPILER = {"lowering", "precision"}


def sources():
    return sorted(path for path in KERNELS.rglob("*") if path.suffix in (".cc", ".h"))


def includes():
    """Yields (file, its folder, included header, folder of the header or None) for each include."""
    for path in sources():
        file = path.relative_to(KERNELS)
        for include in re.findall(r'^#include ["<]([^">]+)[">]', path.read_text(), re.MULTILINE):
            match = re.match(r"tensorflow_ipu/kernels/([a-z_]+)/", include)
            yield str(file), file.parts[0], include, match and match[1]


def test_includes_run_downward_and_the_core_needs_abseil_alone():
    for file, own, include, folder in includes():
        assert folder is None or LAYERS.index(folder) >= LAYERS.index(own), (file, include)
        of_the_core = "/" not in include or folder in CORE or include.startswith(("absl/", "sys/"))
        assert own not in CORE or of_the_core, (file, include)


def test_headers_of_the_compiler_are_read_where_programs_are_lowered_alone():
    """A unit that includes them takes five times as long to compile."""
    heavy = ("tensorflow/compiler/tf2xla/xla_", "xla/hlo/")
    assert not [(file, name) for file, own, name, _ in includes() if own not in COMPILER and name.startswith(heavy)]


def test_every_folder_has_a_layer():
    assert {path.relative_to(KERNELS).parts[0] for path in sources()} == set(LAYERS), "give the new folder a layer"
