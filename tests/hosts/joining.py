"""How workers join."""

import dataclasses

from tensorflow_ipu import hosts
from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts import cluster


def join():
    hosts.join()


def wait_at_most(seconds):
    """Has this worker wait so long for the others in exchanges of the host from now on. It has joined, in its own time."""
    cluster._joined = dataclasses.replace(hosts.join(), timeout=seconds)


def join_with_limit(seconds):
    """Joins with a limit that holds for all that workers do; once more where one came too late for it."""
    while not joined_within(seconds):
        pass


def joined_within(seconds):
    try:
        hosts.join(timeout=seconds)
    except ClusterError as exc:
        if f"within {seconds:g} s" not in str(exc):
            raise
        return False
    return True
