"""A worker's share of the data that all workers give to `fit`, `evaluate` or `predict`."""

from __future__ import annotations

import secrets
import zlib
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tensorflow_ipu._tensorflow import devices
from tensorflow_ipu.hosts import World, exchange, shards

if TYPE_CHECKING:
    from collections.abc import Callable

_BITS = 40  # Of a number for an order: passes are counted on from it.


class Share:
    """The batches of a worker.

    Attributes:
      batches: How many batches all workers have together; None where that is not known.
    """

    def __init__(
        self,
        world: World,
        batches: int | None,
        replicas: int,
        dataset: tf.data.Dataset,
        make: Callable[[int], tf.data.Dataset] | None,
    ) -> None:
        """Takes the data.

        Args:
          world: The workers.
          batches: How many batches the data makes, where that is known.
          replicas: How many replicas each worker has.
          dataset: The data, which all workers have in the same order.
          make: Makes it in the order of a number, where each pass is to have another one.
        """
        self._world = world
        self._replicas = replicas
        self._make = make
        self._order = _agreed_order(world) if make is not None else None
        self._dataset = dataset
        self._deals = shards.deals(dataset)
        own: int = batches if batches is not None else -1
        if not self._deals:
            own = int(self.of_next_pass().cardinality()) * world.workers
        self.batches = own if own >= 0 else None

    @property
    def changes(self) -> bool:
        """Whether each pass has another order."""
        return self._order is not None

    def of_next_pass(self) -> tf.data.Dataset:
        """The share, in the order of the pass that comes next."""
        dataset = self._dataset
        if self._make is not None and self._order is not None:
            dataset = self._make(self._order)
            self._order += 1
        return shards.share_of(dataset, self._world, self._replicas)

    def agreed(self, steps: int) -> int:
        """How many steps each worker runs, of those that its data makes.

        Raises:
          ValueError: Workers have data of other sizes, or batches of other shapes or types, though they are to share it.
        """
        form = str(self._dataset.element_spec)
        own = tf.constant([[steps, zlib.crc32(form.encode())]], tf.int64)
        counts, forms = exchange.all_gather(self._world, own, "how many steps the data makes").numpy().T
        faults = []
        if np.any(counts != steps):
            each = ", ".join(f"worker {worker} has {count}" for worker, count in enumerate(counts.tolist()))
            faults.append(f"of steps, {each}")
        others = [str(worker) for worker, other in enumerate(forms.tolist()) if other != forms[self._world.worker]]
        if others:
            faults.append(
                f"batches of worker {', '.join(others)} have other shapes or types than the ones here, {form}"
            )
        if self._deals and faults:
            raise ValueError(
                f"workers share the batches of their data, and must all give the same; but {'; and '.join(faults)}. Give all of"
                " them the same data; or each its own as a dataset whose options say"
                " `experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF`"
            )
        return int(counts.min())


def _agreed_order(world: World) -> int | None:
    """A number for the order of all workers; None where `tf.random.set_seed` says it, to all the same."""
    seed = devices.global_seed()
    own = tf.constant([[seed is not None, seed or 0, secrets.randbits(_BITS)]], tf.int64)
    of_all = exchange.all_gather(world, own, "the order of the data").numpy()
    given, seeds, drawn = of_all.T
    return None if given.all() and (seeds == seeds[0]).all() else int(drawn[0])
