"""Uses names that do not exist, and handles some of the errors."""

import sibling
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import loops as device_loops
from tensorflow.python.ipu.ipu_estimator import IPUEstimator
from tensorflow.python.ipu.no_such_module import anything

try:
    import popart
except ImportError:
    popart = None

config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
optimizer = ipu.optimizers.no_such_optimizer(anything, IPUEstimator)
device_loops.for_loop(3)
with tf.keras.ipu.NoSuchStage(0):
    sibling.use()
