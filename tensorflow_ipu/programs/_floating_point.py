"""What a program asks of its numbers: how they are rounded, what stops it, in which type sums accumulate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu import _upcalls
from tensorflow_ipu._base import poplar_options
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu._tensorflow.graphs import FunctionGraph
from tensorflow_ipu.config import StochasticRoundingBehaviour, _state
from tensorflow_ipu.programs import _instruction_attributes

_ROUNDING = {
    StochasticRoundingBehaviour.OFF: "off",
    StochasticRoundingBehaviour.ON: "on",
    StochasticRoundingBehaviour.REPLICA_IDENTICAL_ONLY: "identical",
}


class FloatingPoint(NamedTuple):
    """What a device's configuration says of numbers; a program is traced for each."""

    inv: bool = False
    div0: bool = False
    oflo: bool = False
    nanoo: bool = False
    esr: str = "off"
    stable: bool = False
    partials_matmul: str = ""
    partials_conv: str = ""
    batch_norm_replicas: int = 1

    @property
    def are_plain(self) -> bool:
        """Whether they are XLA's, rounded as XLA rounds."""
        return self._replace(batch_norm_replicas=1) == PLAIN

    @property
    def stops(self) -> bool:
        """Whether something in a program's numbers may stop it."""
        return self.inv or self.div0 or self.oflo

    def without_traps(self) -> FloatingPoint:
        """The same without traps, with which nothing stops a program."""
        unstable = self._replace(inv=False, div0=False, oflo=False, stable=False)
        return unstable if unstable.are_plain else self._replace(inv=False, div0=False, oflo=False)

    def text(self) -> str:
        """The same as the program's attribute has it; see `kernels/precision/rounding.h`."""
        return " ".join(
            f"{name}={int(value) if isinstance(value, bool) else value}"
            for name, value in self._asdict().items()
            if name != "batch_norm_replicas"
        )


PLAIN = FloatingPoint()

# By this attribute of the outermost graph of a program, its run knows that its numbers may stop it.
_STOPS = "_ipu_stops"
_ASKED = "_ipu_asked_of_numbers"


# A device: what is configured for it, and what that says. Each run asks.
_known: dict[int, tuple[Mapping[str, Any], FloatingPoint]] = {}


def of_device(ordinal: int) -> FloatingPoint:
    """What is configured for a device."""
    options = _state.options_of_device(ordinal)
    if options is None:
        return PLAIN
    known = _known.get(ordinal)
    if known is None or known[0] is not options:
        known = _known[ordinal] = (options, _read(options))
    return known[1]


def _read(options: Mapping[str, Any]) -> FloatingPoint:
    behaviour = {name: options[f"floating_point_behaviour.{name}"] for name in ("inv", "div0", "oflo", "nanoo")}
    found = FloatingPoint(
        **behaviour,
        esr=_ROUNDING[options["floating_point_behaviour.esr"]],
        stable=options["experimental.enable_prng_stability"],
        partials_matmul=options["matmuls.poplar_options"].get(poplar_options.PARTIALS, ""),
        partials_conv=options["convolutions.poplar_options"].get(poplar_options.PARTIALS, ""),
        batch_norm_replicas=options["norms.experimental.distributed_batch_norm_replica_group_size"],
    )
    return found.without_traps() if not found.stops else found


def ask(graph: tf.Graph) -> None:
    """Has the program that a graph belongs to compute with the machine's numbers, whatever is configured."""
    for one in graphs.around(graph):
        setattr(one, _ASKED, True)


def is_asked(graph: FunctionGraph) -> bool:
    """Whether `ask` was called."""
    return hasattr(graph, _ASKED)


def may_stop(graph: Any) -> bool:
    """Whether the numbers of a program may stop it."""
    return hasattr(graph, _STOPS)


def finish(graph: FunctionGraph, floating_point: FloatingPoint) -> None:
    """Marks the outermost graph of each program that has been traced."""
    if not floating_point.are_plain or is_asked(graph):
        words = [floating_point.text(), *(_instruction_attributes.marker_entries(graph) if is_asked(graph) else ())]
        _upcalls.mark_half_precision(graph, " ".join(words))
        if floating_point.stops:
            setattr(graph, _STOPS, True)
