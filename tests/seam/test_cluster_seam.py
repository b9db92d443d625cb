"""Canaries: TensorFlow's cluster of processes is as the seam takes it to be. A cluster of one shows it."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import RunScript

SCRIPT = """
    import json, sys
    import tensorflow as tf
    from tensorflow_ipu._tensorflow import coordination

    seen = {"before": coordination.is_joined()}
    coordination.join([sys.argv[1]], 0, connect_seconds=60, heartbeat_seconds=60)
    seen["after"] = coordination.is_joined()
    seen["device"] = tf.config.list_logical_devices("CPU")[0].name
    coordination.set_value("key", "a value")
    seen["value"] = coordination.get_value("key", seconds=60)
    try:
        coordination.set_value("key", "another")
    except tf.errors.AlreadyExistsError as exc:
        seen["twice"] = True
    coordination.drop_value("key")
    try:
        coordination.get_value("key", seconds=0.01)
    except tf.errors.DeadlineExceededError as exc:
        seen["dropped"] = True
    coordination.wait_for_all("a barrier", seconds=60)
    print(json.dumps(seen))
"""


def test_a_task_joins_its_cluster_and_keeps_values_for_all(run_script: RunScript) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    seen = json.loads(run_script(SCRIPT, address).stdout.splitlines()[-1])
    assert seen == {
        "before": False,
        "after": True,
        "device": "/job:worker/replica:0/task:0/device:CPU:0",
        "value": "a value",
        "twice": True,
        "dropped": True,
    }
