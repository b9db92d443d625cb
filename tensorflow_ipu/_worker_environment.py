"""What environment variables say of a worker: who it is, what it listens on, how many replicas it has."""

from __future__ import annotations

from collections.abc import Mapping

from tensorflow_ipu import _environment, _variables

TF_CONFIG_VARIABLE = "TF_CONFIG"
TIMEOUT_VARIABLE = "TENSORFLOW_IPU_TIMEOUT"
LISTEN_VARIABLE = "TENSORFLOW_IPU_LISTEN"
TRANSPORT_VARIABLE = "TENSORFLOW_IPU_TRANSPORT"
DATA_PORT_VARIABLE = "TENSORFLOW_IPU_DATA_PORT"
REPLICAS_VARIABLE = "TENSORFLOW_IPU_REPLICAS"
IPUS_PER_REPLICA_VARIABLE = "TENSORFLOW_IPU_IPUS_PER_REPLICA"

DEFAULT_TIMEOUT = 60.0

# The first is the default.
LISTEN = ("address", "all")
TRANSPORTS = ("sockets", "grpc")
# A day: what is above was meant in another unit.
MOST_SECONDS = 86400

_MOST_PORTS = 65535


def tf_config(environ: Mapping[str, str] | None = None) -> str | None:
    """What `TF_CONFIG` says of the cluster that this process is a task of; None where it is unset or empty."""
    return _variables.text_of(TF_CONFIG_VARIABLE, environ) or None


def worker_timeout(environ: Mapping[str, str] | None = None) -> float:
    """How many seconds workers wait for each other (`TENSORFLOW_IPU_TIMEOUT`); 60 where unset."""
    text = _variables.text_of(TIMEOUT_VARIABLE, environ)
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(
            f"`{TIMEOUT_VARIABLE}={text}` is no number of seconds above 0 and up to {MOST_SECONDS}; set it to one, or"
            f" unset it for {DEFAULT_TIMEOUT:g}"
        )
    return seconds


def worker_listens(environ: Mapping[str, str] | None = None) -> str:
    """Where workers listen (`TENSORFLOW_IPU_LISTEN`): `address`, the worker's own, where unset; or `all` interfaces."""
    advice = (
        "set it to `all` for workers that listen on all interfaces of their machine, or unset it for those that listen on"
        " their own address alone"
    )
    return _variables.choice(LISTEN_VARIABLE, LISTEN, advice, environ)


def transport(environ: Mapping[str, str] | None = None) -> str:
    """By what programs of several workers send messages (`TENSORFLOW_IPU_TRANSPORT`): `sockets` where unset; or `grpc`."""
    advice = "set it to `grpc` for messages by TensorFlow's server alone, or unset it for connections of their own"
    return _variables.choice(TRANSPORT_VARIABLE, TRANSPORTS, advice, environ)


def data_port(environ: Mapping[str, str] | None = None) -> int:
    """The port of this worker's own connections (`TENSORFLOW_IPU_DATA_PORT`); 0 where the system chooses."""
    return _variables.positive_int(DATA_PORT_VARIABLE, 0, _MOST_PORTS, environ)


def local_replicas(environ: Mapping[str, str] | None = None) -> int | None:
    """How many replicas each worker has (`TENSORFLOW_IPU_REPLICAS`); None where that is left to programs."""
    return _variables.positive_int(REPLICAS_VARIABLE, 0, _environment.MOST_IPUS, environ) or None


def ipus_per_replica(environ: Mapping[str, str] | None = None) -> int | None:
    """How many IPUs each replica has (`TENSORFLOW_IPU_IPUS_PER_REPLICA`); None where that is left to programs."""
    return _variables.positive_int(IPUS_PER_REPLICA_VARIABLE, 0, _environment.MOST_IPUS, environ) or None


def default_ipus(environ: Mapping[str, str] | None = None) -> int:
    """How many IPUs the device has that there is where programs select none: as many as its replicas need."""
    replicas, each = local_replicas(environ), ipus_per_replica(environ)
    wanted = (replicas or 1) * (each or 1)
    if wanted > _environment.ipu_count(environ):
        raise ValueError(
            f"`{REPLICAS_VARIABLE}` and `{IPUS_PER_REPLICA_VARIABLE}` say {replicas or 1} replicas of {each or 1} IPUs, and"
            f" there are {_environment.ipu_count(environ)} IPUs: {_environment.way_out(_environment.COUNT_VARIABLE, wanted)}"
        )
    return wanted
