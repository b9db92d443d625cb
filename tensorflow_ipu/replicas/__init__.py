"""Programs and their replicas: from a `tf.function` to a run on the emulated IPUs."""

from tensorflow_ipu.replicas._program import compiled, is_graph_function
from tensorflow_ipu.replicas._runner import run
from tensorflow_ipu.replicas._runs import active, running, wait_until_idle

__all__ = ["active", "compiled", "is_graph_function", "run", "running", "wait_until_idle"]
