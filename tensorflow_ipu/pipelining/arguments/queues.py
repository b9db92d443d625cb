"""The queues of a pipeline, and what it accumulates for them: what `pipeline` was given, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._faults import Faults
from tensorflow_ipu._tensors import is_function
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu.pipelining.arguments.given import Given

if TYPE_CHECKING:
    from tensorflow_ipu._types import DTypeOf


def check_queues(given: Given, training: bool, faults: Faults) -> None:
    """Records what is wrong with the queues, and with what is to go into the outfeed."""
    infeed, outfeed, mask = given.infeed_queue, given.outfeed_queue, given.outfeed_mask
    if infeed is not None and not isinstance(infeed, IPUInfeedQueue):
        faults.add(TypeError, f"infeed_queue is not an instance of `IPUInfeedQueue`, but {infeed!r}")
    if outfeed is not None and not isinstance(outfeed, IPUOutfeedQueue):
        faults.add(TypeError, f"outfeed_queue is not an instance of `IPUOutfeedQueue`, but {outfeed!r}")
    if mask is not None and not isinstance(mask, (list, tuple)):
        faults.add(TypeError, f"`outfeed_mask` must be a list of bools, one an output, but is {mask!r}")
    if mask is not None and not training:
        faults.add(ValueError, "An optimizer_function must be provided when `outfeed_mask` is set")
    if given.outfeed_loss and not training:
        faults.add(ValueError, "An optimizer_function must be provided when `outfeed_loss` is True")
    if given.outfeed_loss and mask is not None:
        faults.add(ValueError, "Only one of `outfeed_loss` and `outfeed_mask` can be set")
    if given.outfeed_loss and outfeed is None:
        faults.add(ValueError, "An outfeed_queue must be provided when `outfeed_loss` is True")
    if given.accumulate_outfeed:
        if outfeed is None:
            faults.add(ValueError, "An outfeed_queue must be provided when `accumulate_outfeed` is True")
        elif isinstance(outfeed, IPUOutfeedQueue) and outfeed.outfeed_mode is not IPUOutfeedMode.ALL:
            faults.add(
                ValueError,
                "To accumulate the outfeed, it must be in `IPUOutfeedMode.ALL`; make another `outfeed_queue`",
            )


def check_dtype(name: str, value: DTypeOf, faults: Faults) -> None:
    """Records a fault where `value` is no dtype, no function that may return one, and not None."""
    if value is None or is_function(value):
        return
    try:
        tf.as_dtype(value)
    except TypeError:
        faults.add(TypeError, f"`{name}` must be a dtype, a function that returns one, or None, but is {value!r}")
