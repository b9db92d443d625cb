"""What users know operations by: their layer and the operation in it, without names that TensorFlow and XLA make up."""

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
    """The layer of an operation, as a path, and the operation's name in it."""

    layer: tuple[str, ...]
    operation: str

    def __str__(self) -> str:
        return "/".join((*self.layer, self.operation))


class Layers:
    """The layers of a program, by the name scopes of its operations.

    Keras 3 enters the scope of a layer twice for each call, first to build it. So the operations of the layer `dense` are in
    `dense_1`, those of a second call in `dense_3`, and none is in `dense` and `dense_2`, by which its scopes are told from
    others. A layer `dense_1` beside it has `dense_1_2`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        paths = {tuple(_parts(name)): _is_gradient(name) for name in names}
        self._operations = paths.keys()
        # Of gradients, operations of the forward pass are scopes too.
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
        found = {self._layer(path) for path in paths}
        outermost = {layer[0] for layer, _ in found if layer and _}
        self._model = outermost.pop() if len(outermost) == 1 else ""

    def _layer(self, path: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
        """Returns the layer of an operation, and how many parts of its path name a layer of Keras; else its scopes, and 0."""
        end = next((end for end in range(len(path) - 1, 0, -1) if path[:end] in self._layers), 0)
        if end:
            named = (self._layers.get(path[: at + 1], path[at]) for at in range(end))
            return tuple(named), end
        scopes = itertools.takewhile(
            lambda at: path[:at] not in self._operations and (at == 1 or not path[at - 1][:1].isupper()),
            range(1, 1 + next((at for at, part in enumerate(path) if _FUNCTIONS.match(part)), len(path) - 1)),
        )
        return path[: len(list(scopes))], 0

    def known_as(self, name: str, kind: str = "") -> KnownAs:
        """Returns the layer and name by which users know an operation."""
        path = tuple(_parts(name))
        layer, end = self._layer(path)
        rest = [part.replace("_grad", "") for part in path[end or len(layer) :] if part]
        if end and len(layer) > 1 and layer[0] == self._model:
            layer = layer[1:]
        operation = "/".join(part for part, _ in itertools.groupby(rest)) or kind or "value"
        if "." in operation:  # XLA's own name, such as `fusion.12`.
            operation = kind or operation.partition(".")[0]
        return KnownAs(layer, f"{operation} (gradient)" if _is_gradient(name) else operation)


def _without_part(name: str) -> str:
    """Removes the pass of a pipeline from a name. A loop of gradients repeats the name: only the inner one is kept."""
    return _REPEATED.sub("gradients/", _PART.sub("", name.rsplit(";", 1)[-1], count=1))


def _is_gradient(name: str) -> bool:
    return any(map(_GRADIENT.match, _without_part(name).split("/")))


def _parts(name: str) -> list[str]:
    """Returns the parts of a name that the user chose; the last one is empty if TensorFlow chose the operation's name."""
    *scopes, operation = _without_part(name).split("/")
    return [*(part for part in scopes if not _INTERNAL.match(part)), "" if _INTERNAL.match(operation) else operation]


def layers_of(report: Report) -> Layers:
    alive = (name for memory in report.memories for name, _ in memory.largest)
    return Layers((*(each.name for each in report.operations), *alive))


def name_in(layers: Layers, row: OperationTime) -> str:
    """Returns the name by which users know an operation of a report, with its pass of a pipeline."""
    known = str(layers.known_as(row.name, row.kind))
    return f"{known.removesuffix(' (gradient)')} ({row.part})" if row.part else known


def plain_name(name: str) -> str:
    """Removes the parts of a name that TensorFlow and XLA make up."""
    return "/".join(filter(None, _parts(name))) or name.rsplit("/", 1)[-1]


def shortened(name: str, width: int) -> str:
    """Cuts the middle out of a long name: its begin names the layer, and its end the operation."""
    if len(name) <= width:
        return name
    begin = (width - 3) // 2
    return f"{name[:begin]}...{name[begin + 3 - width :]}"


def grouped(layers: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Returns the group of each layer: the begin of its path, at the least depth with several groups."""
    found = set(layers)
    depth = next((depth for depth in range(1, _DEPTHS) if len({layer[:depth] for layer in found}) >= _FEW), _DEPTHS)
    return {layer: "/".join(layer[:depth]) for layer in found}
