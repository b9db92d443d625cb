"""The cluster that this process joins once."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import socket
import threading
import time
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import is_number
from tensorflow_ipu._native.library import native
from tensorflow_ipu._tensorflow import variables
from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts import rendezvous
from tensorflow_ipu.hosts.identity import Identity, identity
from tensorflow_ipu.hosts.rendezvous import listening, meet, name_of, refusal


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers that this process is one of.

    Attributes:
      worker: Which of them it is, from 0. Worker 0 is the chief.
      workers: How many there are.
      addresses: Of each of them, `host:port`.
      timeout: Seconds that workers wait for each other.
    """

    worker: int
    workers: int
    addresses: tuple[str, ...]
    timeout: float

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which writes what is written once."""
        return self.worker == 0


_joining = threading.Lock()
_joined: Cluster | None = None


def joined() -> Cluster | None:
    """The cluster that this process has joined, of two workers or more; None where it works alone."""
    return _joined


def join(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | Identity | None = None,
    timeout: float | None = None,
    listen: str | None = None,
) -> Cluster:
    """Joins the cluster that this process is a worker of, and returns when all workers have joined.

    A process joins once: further calls return what the first one did. Workers talk in clear text.

    Args:
      cluster_resolver: The resolver that knows the cluster, or the identity itself. None: the environment variable
        `TF_CONFIG`; where that is unset, the process is alone.
      timeout: Seconds to wait for workers, here and later. None: the environment variable `TENSORFLOW_IPU_TIMEOUT`,
        60 where that is unset.
      listen: `"address"` to listen on the worker's own address alone, `"all"` for all interfaces. None: the
        environment variable `TENSORFLOW_IPU_LISTEN`, the own address where that is unset.

    Raises:
      ClusterError: A worker did not come, or was started twice; or a port is in use.
      ValueError: An argument or a variable is malformed; or this process has joined as another worker.
      TypeError: An argument is of a wrong type.
    """
    global _joined  # noqa: PLW0603  (A process joins one cluster.)
    own = cluster_resolver if isinstance(cluster_resolver, Identity) else identity(cluster_resolver)
    seconds = _checked_timeout(timeout)
    everywhere = _checked_listen(listen) == "all"
    if own is None or own.workers == 1:
        return Cluster(0, 1, () if own is None else own.addresses, seconds)
    with _joining:
        if _joined is not None:
            if (own.worker, own.addresses) != (_joined.worker, _joined.addresses):
                raise ValueError(
                    f"this process is worker {_joined.worker} of {', '.join(_joined.addresses)} already, and cannot be worker"
                    f" {own.worker} of {', '.join(own.addresses)}: a process joins one cluster"
                )
            return _joined
        _joined = _join(own, seconds, everywhere)
        return _joined


def _join(own: Identity, seconds: float, everywhere: bool) -> Cluster:
    end = time.monotonic() + seconds
    with listening(own, everywhere) as listener:
        _tell_launcher(own)
        token = meet(own, listener, seconds)
        connections = rendezvous.connect(own, listener, token, end - time.monotonic())
        sockets = [connections[one].detach() if one in connections else -1 for one in range(own.workers)]
        connected = native.ipu_connect_workers(
            own.worker,
            "\n".join(own.addresses).encode(),
            seconds,
            (ctypes.c_int32 * own.workers)(*sockets),
            listener.detach(),
            refusal(own).encode(),
        )
    if not connected:
        raise ClusterError(
            f"{name_of(own, own.worker)}, this process, gets no thread of the system for its connections"
        )
    return Cluster(own.worker, own.workers, own.addresses, seconds)


def _tell_launcher(own: Identity) -> None:
    """Tells `python -m tensorflow_ipu run`, if that started this process, that this worker is there."""
    number = environment.launcher()
    if number is not None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as sender:
            sender.send(str(own.worker).encode())


def _checked_timeout(timeout: float | None) -> float:
    if timeout is None:
        return environment.worker_timeout()
    if not is_number(timeout):
        raise TypeError(f"`timeout` must be a number of seconds, but is {timeout!r}")
    if not 0 < timeout <= environment.MOST_SECONDS:
        raise ValueError(f"`timeout` is {timeout:g}, and must be above 0 and at most {environment.MOST_SECONDS} s")
    return float(timeout)


def _checked_listen(listen: str | None) -> str:
    if listen is None:
        return environment.worker_listens()
    if listen not in environment.LISTEN:
        raise ValueError(f'`listen` must be "address" or "all", but is {listen!r}')
    return listen


_Policy = tf.data.experimental.AutoShardPolicy


def deals(dataset: tf.data.Dataset) -> bool:
    """Whether workers share a dataset element by element, so that each knows how many all have."""
    return _policy(dataset) in (_Policy.AUTO, _Policy.DATA)


def share_of(dataset: tf.data.Dataset, cluster: Cluster, replicas: int) -> tf.data.Dataset:
    """The share of a worker."""
    policy = _policy(dataset)
    if cluster.workers == 1 or policy is _Policy.OFF:
        return dataset
    if policy not in (_Policy.AUTO, _Policy.DATA):
        return variables.auto_sharded(dataset, cluster.workers, cluster.worker)
    return _dealt(dataset, cluster.workers, cluster.worker, replicas)


def _policy(dataset: tf.data.Dataset) -> Any:
    options: Any = variables.options_of(dataset)
    return options.experimental_distribute.auto_shard_policy


def _dealt(dataset: tf.data.Dataset, workers: int, worker: int, replicas: int) -> tf.data.Dataset:
    whole: Any = dataset.cardinality()
    mine: Any
    if replicas == 1:
        mine = dataset.shard(workers, worker)
    else:

        def is_mine(number: Any, *_: Any) -> Any:
            return tf.equal(number // replicas % workers, worker)

        def without_number(_: Any, *element: Any) -> Any:
            return element[0] if len(element) == 1 else element

        mine = dataset.enumerate().filter(is_mine).map(without_number)
    if not tf.executing_eagerly():
        return mine
    rounds = int(whole) if int(whole) < 0 else int(whole) // (workers * replicas)
    if rounds < 0:
        infinite = rounds == int(tf.data.INFINITE_CARDINALITY)
        return mine.apply(tf.data.experimental.assert_cardinality(rounds)) if infinite else mine
    return mine.take(rounds * replicas).apply(tf.data.experimental.assert_cardinality(rounds * replicas))
