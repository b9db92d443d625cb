# ruff: noqa: PERF203, T201
# The compatibility layer provides these names.
# pyright: reportAttributeAccessIssue=false
"""Names and calls of Keras that scripts of 2021 use with `--keras 2`. The test compares the output."""

import sys

import keras
import keras.ipu.optimizers
import keras.utils.generic_utils
import numpy as np
import tensorflow as tf
import tensorflow.keras.backend as K  # noqa: N812
from keras.engine import functional, keras_tensor
from keras.layers import Dense
from keras.layers.core import Dropout, SlicingOpLambda, TFOpLambda
from keras.layers.merge import _Merge
from keras.layers.recurrent import RNN, DropoutRNNCellMixin
from keras.losses import LossFunctionWrapper
from keras.optimizer_v2 import gradient_descent, learning_rate_schedule
from keras.optimizer_v2.optimizer_v2 import OptimizerV2
from keras.utils import losses_utils, tf_inspect
from tensorflow.keras import ipu
from tensorflow.keras.mixed_precision import experimental as mixed_precision
from tensorflow.python.keras import backend, layers
from tensorflow.python.keras.engine import base_layer, training
from tensorflow.python.keras.layers.convolutional import Conv, ZeroPadding2D
from tensorflow.python.keras.mixed_precision.policy import Policy
from tensorflow.python.keras.optimizer_v2.adam import Adam
from tensorflow.python.keras.utils.generic_utils import get_custom_objects
from tensorflow_addons import metrics
from tensorflow_addons import optimizers as addons
from tensorflow_addons.layers import WeightNormalization


class Plain(tf.keras.optimizers.Optimizer):
    """Gradient descent as a subclass in the style of 2021."""

    def __init__(self, rate, name="Plain", **kwargs):
        super().__init__(name, **kwargs)
        self._set_hyper("rate", rate)

    def _create_slots(self, var_list):
        for var in var_list:
            self.add_slot(var, "seen")

    def _resource_apply_dense(self, grad, var, apply_state=None):
        self.get_slot(var, "seen").assign_add(grad)
        return var.assign_sub(self._get_hyper("rate", var.dtype) * grad)


here = tf.keras.layers
same = [
    (keras, sys.modules["tf_keras"]),
    (keras.ipu, ipu),
    (keras.ipu, tf.keras.ipu),
    (keras.ipu, tf.compat.v1.keras.ipu),
    (K.floatx, backend.floatx),
    (Dense, here.Dense),
    (Dropout, here.Dropout),
    (RNN, here.RNN),
    (ZeroPadding2D, here.ZeroPadding2D),
    (layers.LSTM, here.LSTM),
    (base_layer.Layer, here.Layer),
    (training.Model, tf.keras.Model),
    (Policy, tf.keras.mixed_precision.Policy),
    (mixed_precision.set_policy, tf.keras.mixed_precision.set_global_policy),
    (learning_rate_schedule.LearningRateSchedule, tf.keras.optimizers.schedules.LearningRateSchedule),
    (losses_utils.ReductionV2, tf.keras.losses.Reduction),
    (tf_inspect.getfullargspec, keras.utils.tf_inspect.getfullargspec),
    (OptimizerV2, tf.keras.optimizers.Optimizer),
    (OptimizerV2, keras.optimizers.Optimizer),
    (Adam, tf.keras.optimizers.Adam),
    (gradient_descent.SGD, keras.optimizer_v2.gradient_descent.SGD),
    (keras.engine.functional, functional),
    (get_custom_objects, tf.keras.utils.get_custom_objects),
    (keras.utils.generic_utils.Progbar, tf.keras.utils.Progbar),
]
print("same", *(one is other for one, other in same))
print("below", issubclass(Dense, base_layer.Layer), issubclass(here.Add, _Merge), issubclass(here.Conv2D, Conv))
print("below", issubclass(here.LSTMCell, DropoutRNNCellMixin), issubclass(tf.keras.losses.Huber, LossFunctionWrapper))

inputs = keras.Input(80)
doubled = tf.concat([inputs[:, :2], inputs[:, 2:4]], 1)
outputs = Dense(1, kernel_initializer="ones")(doubled)
model = keras.Model(inputs, outputs)
print("graph", type(model) is functional.Functional, isinstance(inputs, keras_tensor.KerasTensor))
print("graph", [type(layer) for layer in model.layers[1:4]] == [SlicingOpLambda, SlicingOpLambda, TFOpLambda])

x, y = np.ones([4, 80], np.float32), np.ones([4, 1], np.float32)
for optimizer in ("sgd", Plain(0.125), gradient_descent.SGD(lr=0.25)):
    model.compile(optimizer, "mse", steps_per_execution=tf.constant(1))
    model.fit(x, y, batch_size=2, verbose=0)
    print("weights", type(model.optimizer).__name__, isinstance(model.optimizer, OptimizerV2), end=" ")
    print(len(model.optimizer.get_weights()))

train = tf.compat.v1.train
kinds = [
    lambda: train.AdadeltaOptimizer(0.5),
    lambda: train.AdagradOptimizer(0.5),
    lambda: train.AdamOptimizer(0.1, beta1=0.8),
    lambda: train.FtrlOptimizer(0.1),
    lambda: train.GradientDescentOptimizer(0.1),
    lambda: train.MomentumOptimizer(0.1, 0.5, use_nesterov=True),
    lambda: train.RMSPropOptimizer(0.1, epsilon=0.1),
    lambda: train.RMSPropOptimizer(0.1, momentum=0.5, centered=True),
]
for make in kinds:
    weights = tf.Variable([1.0, -2.0])
    optimizer = make()
    single = keras.Sequential([Dense(1, use_bias=False, input_shape=(2,))])
    single.set_weights([np.array([[1.0], [-2.0]])])
    single.compile(make(), "mse")
    for step in range(3):
        given = np.array([[1.0, 0.5 * step]], np.float32)
        single.train_on_batch(given, np.zeros([1, 1], np.float32))
        loss = lambda: tf.reduce_sum(tf.square(tf.linalg.matvec(given, weights)))  # noqa: B023, E731
        optimizer.minimize(loss, var_list=[weights])
    print("v1", np.allclose(single.get_weights()[0][:, 0], weights.numpy(), rtol=1e-6, atol=0.0))

weights = tf.Variable([2.0, 4.0])
for optimizer in (addons.SGDW(0.1, 0.5), addons.extend_with_decoupled_weight_decay(keras.optimizers.SGD)(0.1, lr=0.5)):
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), weights)])
print("addons", isinstance(optimizer, OptimizerV2), np.allclose(weights.numpy(), [0.67, 2.29]))
score = metrics.F1Score(2)
score.update_state([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
score.update_state(tf.constant([[1, 0]]), tf.constant([[0.9, 0.1]], tf.float16))
print("addons", np.allclose(score.result(), [4 / 5, 2 / 3]))
for plain, shape in ((Dense(3, "relu"), [4, 2]), (here.SimpleRNN(3), [4, 2, 2])):
    x = tf.random.stateless_normal(shape, [1, 2])
    wrapped = WeightNormalization(plain, data_init=False)
    outputs = wrapped(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(wrapped(x))
    gradients = tape.gradient(loss, [wrapped.g, wrapped.v])
    print("addons", np.allclose(outputs, plain(x), rtol=1e-5), all(np.any(gradient) for gradient in gradients))

for lost in ("keras.engine.no_such", "tensorflow.python.keras.no_such"):
    try:
        __import__(lost)
    except ModuleNotFoundError as exc:
        print("lost", exc)
print("lost", hasattr(tf.keras.layers, "NoSuch"))

from tensorflow_ipu import compat  # noqa: E402
from tensorflow_ipu.compat import _keras_2  # noqa: E402

for path in {**_keras_2._MOVED, **_keras_2._RENAMED}:
    for root in ("keras", "tensorflow.keras", "tensorflow.python.keras"):
        parent, _, child = f"{root}.{path}".rpartition(".")
        modules: dict = {}
        exec(f"import {root}.{path} as one; from {parent} import {child} as other", modules)
        if modules["one"] is not modules["other"]:
            print("lost", root, path)
keras.mixed_precision.policy.set_policy("float32")

compat.uninstall()
print("after", tf.keras.optimizers.SGD is OptimizerV2, issubclass(keras.optimizers.SGD, OptimizerV2))
print("after", hasattr(tf.keras, "ipu"), hasattr(keras, "engine") and hasattr(keras.losses, "LossFunctionWrapper"))
print("after", [name for name in sys.modules if name == "keras" or name.startswith("keras.")])
