"""The configuration object that users fill in."""

from __future__ import annotations

from typing import Any

from tensorflow_ipu.config import _state
from tensorflow_ipu.config._checks import check_host_device, resolve
from tensorflow_ipu.config._enums import SelectionOrder
from tensorflow_ipu.config._metadata import Effect
from tensorflow_ipu.config._selection import as_tuple
from tensorflow_ipu.config._tree import Category, Option, Subcategory
from tensorflow_ipu.config.categories.compiler import Optimizations, Scheduling
from tensorflow_ipu.config.categories.libraries import Convolutions, Matmuls, Pooling, Slices
from tensorflow_ipu.config.categories.machine import DeviceConnection, Experimental, IOTiles, IPUModel
from tensorflow_ipu.config.categories.numerics import FloatingPointBehaviour, Norms

_SELECTION = int | list[int] | tuple[int, ...]
_NO_OPTIONS: dict[str, Any] = {}


class IPUConfig(Category):
    """What the IPU system should look like: a tree of attributes, each with its default in a new object.

        config = IPUConfig()
        config.auto_select_ipus = 2
        config.io_tiles.num_io_tiles = 32
        config.configure_ipu_system()

    An assignment must have exactly the type of the attribute (`True` is no `int`, `1` no `float`), and names that do
    not exist are refused. `get_attribute_metadata` tells the type, the default and the meaning of an attribute.
    Equal objects describe the same system; `copy` and `deepcopy` both give an independent one.
    """

    allow_recompute = Option(
        False,
        "Computes activations again in the backward pass: less memory, more time.",
        effect=Effect.MODEL,
    )
    selection_order = Option(SelectionOrder.AUTO, "Order in which the shards of a program get the IPUs of a device.")
    serialization_output_folder = Option(
        "",
        'Folder of compiled programs; `""` for that of `TF_POPLAR_FLAGS`, if any.',
        effect=Effect.ACTS,
    )
    compilation_poplar_options = Option(_NO_OPTIONS, "Options of the Poplar compiler, as text.")
    gcl_poplar_options = Option(_NO_OPTIONS, "Options of collective operations, as text.")
    auto_select_ipus: Option[int | list[int] | tuple[int, ...]] = Option(
        [],
        "IPUs of each device: `[2, 4]` makes `/device:IPU:0` of two IPUs and `/device:IPU:1` of four; a number"
        " makes one device. A program runs as many replicas as its shards fit into the device. Without this and"
        " `select_ipus` there is one device of one IPU, or of what a worker's replicas need under `python -m"
        " tensorflow_ipu run --replicas`.",
        effect=Effect.ACTS,
        hint=_SELECTION,
        canonical=as_tuple,
    )
    select_ipus: Option[int | list[int] | tuple[int, ...]] = Option(
        [],
        "MultiIPU id of each device: 0 to N-1 are the N IPUs of the machine, then come pairs of neighbours, fours"
        " and so on up to 2N-2, the whole machine. A number makes one device.",
        effect=Effect.ACTS,
        hint=_SELECTION,
        canonical=as_tuple,
    )
    convolutions = Subcategory(Convolutions)
    device_connection = Subcategory(DeviceConnection)
    slices = Subcategory(Slices)
    experimental = Subcategory(Experimental)
    floating_point_behaviour = Subcategory(FloatingPointBehaviour)
    io_tiles = Subcategory(IOTiles)
    ipu_model = Subcategory(IPUModel)
    matmuls = Subcategory(Matmuls)
    norms = Subcategory(Norms)
    optimizations = Subcategory(Optimizations)
    pooling = Subcategory(Pooling)
    scheduling = Subcategory(Scheduling)

    def __init__(self) -> None:
        super().__init__()

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Applies this configuration; see `tensorflow_ipu.config.configure_ipu_system`.

        Args:
          device: The host device next to the IPUs. The emulator has a single host, so it makes no difference.

        Raises:
          TypeError: `device` is no string, or a list or dictionary holds values of the wrong type.
          ValueError: Attributes contradict each other or hold values that make no sense.
          DeviceLimitError: More IPUs or devices are asked for than there are.
        """
        check_host_device(device)
        _state.configure(resolve(self))
