"""The states of a stored program that belong to no queue: where replicas meet, and random streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow_ipu._library import native
from tensorflow_ipu.ops import _sites

if TYPE_CHECKING:
    import tensorflow as tf

    from tensorflow_ipu.feeds import _feed


def kind(state: tf.Tensor) -> str | None:
    """`random`, `identity` or `site`; None for what a file cannot hold: functions of the host."""
    feed: Any = getattr(state, "_ipu_feed", None)
    if feed._drop is native.ipu_random_drop:
        return "random"
    if _sites.is_identity(feed):
        return "identity"
    return "site" if feed._drop is native.ipu_site_drop else None


def feed_of(kind: str, device: str) -> _feed.Feed:
    """What takes the place of the stored program's."""
    return _sites._make_random(device) if kind == "random" else _sites._make(device, "a stored program")
