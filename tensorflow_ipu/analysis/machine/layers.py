"""Names of operations for users: the layer and the operation in it, without names that TensorFlow and XLA generate."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tensorflow_ipu._base import environment

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine.report import Report
    from tensorflow_ipu.analysis.machine.walk import OperationTime

_REPEATED = re.compile(r".*/gradients/")
_GRADIENT = re.compile(r"gradient_tape|gradients$")
_INTERNAL = re.compile(
    r"(Stateful)?PartitionedCall|XLA_(Args|Retvals)|cluster_|__inference|jit_|Ipu|ipu_|gradient_tape"
    r"|(gradients|while|body|cond|then|else|branch|None)(_\d+)?$"
)
_PART = re.compile(r"stage \d+[^/]* (forward|recompute|backward)/|update/")
# Scopes of TensorFlow's functions within layers.
_FUNCTIONS = re.compile(r".*_grad(_\d+)?$|batchnorm|moments|einsum|stateless_|strided_slice|div_no_nan|truediv")
_NUMBERED = re.compile(r"(.+)_(\d+)$")
_DEPTHS, _FEW = 3, 4


class KnownAs(NamedTuple):
    """The name of an operation for users: the path of its layer, and its name in the layer."""

    layer: tuple[str, ...]
    operation: str

    def __str__(self) -> str:
        return "/".join((*self.layer, self.operation))


class Layers:
    """The layers of a program, derived from the name scopes of its operations.

    Keras 3 enters the scope of a layer twice for each call: once to build the layer, and once to call it. So TensorFlow
    numbers the scopes of the layer `dense`: the first call has `dense_1`, a second call `dense_3`. No operation is in
    `dense` or `dense_2`. So the numbered scope `dense_3` is the scope of a layer if `dense_2` is unused. A different
    layer named `dense_1` has the scope `dense_1_2`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        paths = {tuple(_parts(name)): _is_gradient(name) for name in names}
        self._operations = paths.keys()
        # A gradient's path contains the name of a forward operation as a scope, which is not a layer.
        scopes = {path[:end] for path, gradient in paths.items() if not gradient for end in range(1, len(path))}
        used = scopes | paths.keys()
        self._layers: dict[tuple[str, ...], str] = {}
        for scope in () if environment.uses_keras_2() else sorted(scopes, key=len):
            numbered = _NUMBERED.match(scope[-1])
            if numbered is None or _FUNCTIONS.match(scope[-1]) or (scope[:-1] and scope[:-1] not in self._layers):
                continue
            name, number = numbered[1], int(numbered[2])
            if (*scope[:-1], f"{name}_{number - 1}" if number > 1 else name) not in used:
                self._layers[scope] = name
        found_layers = {self._layer(path) for path in paths}
        outermost = {layer[0] for layer, end in found_layers if layer and end}
        self._model = outermost.pop() if len(outermost) == 1 else ""

    def _layer(self, path: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
        """Returns the layer of an operation, and the number of parts of its path that name a Keras layer.

        If no part names a Keras layer, the layer is the operation's scopes, and the number is 0.
        """
        end = next((end for end in range(len(path) - 1, 0, -1) if path[:end] in self._layers), 0)
        if end:
            names = (self._layers.get(path[: index + 1], path[index]) for index in range(end))
            return tuple(names), end
        scopes = itertools.takewhile(
            lambda size: path[:size] not in self._operations and (size == 1 or not path[size - 1][:1].isupper()),
            range(1, 1 + next((index for index, part in enumerate(path) if _FUNCTIONS.match(part)), len(path) - 1)),
        )
        return path[: len(list(scopes))], 0

    def known_as(self, name: str, kind: str = "") -> KnownAs:
        """Returns the layer of an operation and its name in it. `kind` replaces a name that XLA generated."""
        path = tuple(_parts(name))
        layer, end = self._layer(path)
        parts = [part.replace("_grad", "") for part in path[end or len(layer) :] if part]
        if end and len(layer) > 1 and layer[0] == self._model:
            layer = layer[1:]
        operation = "/".join(part for part, repeats in itertools.groupby(parts)) or kind or "value"
        if "." in operation:  # XLA generates names such as `fusion.12`.
            operation = kind or operation.partition(".")[0]
        return KnownAs(layer, f"{operation} (gradient)" if _is_gradient(name) else operation)


def _without_part(name: str) -> str:
    """Returns a name without the pass of a pipeline. Of nested `gradients` scopes, only the innermost one stays."""
    return _REPEATED.sub("gradients/", _PART.sub("", name.rsplit(";", 1)[-1], count=1))


def _is_gradient(name: str) -> bool:
    return any(map(_GRADIENT.match, _without_part(name).split("/")))


def _parts(name: str) -> list[str]:
    """Returns the parts of a name that the user chose. The last one is empty if TensorFlow generated it."""
    *scopes, operation = _without_part(name).split("/")
    return [*(part for part in scopes if not _INTERNAL.match(part)), "" if _INTERNAL.match(operation) else operation]


def layers_of(report: Report) -> Layers:
    alive = (name for memory in report.memories for name, size in memory.largest)
    return Layers((*(row.name for row in report.operations), *alive))


def name_in(layers: Layers, row: OperationTime) -> str:
    """Returns the name of a report's operation for users, with its pass of a pipeline."""
    name = str(layers.known_as(row.name, row.kind))
    return f"{name.removesuffix(' (gradient)')} ({row.part})" if row.part else name


def plain_name(name: str) -> str:
    """Returns a name without the parts that TensorFlow and XLA generate."""
    return "/".join(filter(None, _parts(name))) or name.rsplit("/", 1)[-1]


def shortened(name: str, width: int) -> str:
    """Returns a name without its middle if it is too long: its start names the layer, and its end the operation."""
    if len(name) <= width:
        return name
    begin = (width - 3) // 2
    return f"{name[:begin]}...{name[begin + 3 - width :]}"


def grouped(layers: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Returns the group of each layer: the first parts of its path, as many as it takes to have `_FEW` groups."""
    unique = set(layers)
    depth = next((depth for depth in range(1, _DEPTHS) if len({layer[:depth] for layer in unique}) >= _FEW), _DEPTHS)
    return {layer: "/".join(layer[:depth]) for layer in unique}
