"""Queues between the host and the programs on the emulated IPUs."""

from tensorflow_ipu.feeds._element import body_arguments, body_parameters
from tensorflow_ipu.feeds._limits import set_wait_limit, shut_down
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue
from tensorflow_ipu.feeds.iterator import IPUIterator, IPUOwnedIterator
from tensorflow_ipu.feeds.outfeed import (
    IPUOutfeedMode,
    IPUOutfeedQueue,
    IPUOutfeedQueueIterator,
    ScopedIPUOutfeedQueue,
)

__all__ = [
    "IPUInfeedQueue",
    "IPUIterator",
    "IPUOutfeedMode",
    "IPUOutfeedQueue",
    "IPUOutfeedQueueIterator",
    "IPUOwnedIterator",
    "ScopedIPUOutfeedQueue",
    "set_wait_limit",
    "shut_down",
]
