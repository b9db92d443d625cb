# ruff: noqa: B905, T201
"""Calls of Keras before version 3 that scripts contain, in the scope of the strategy."""

import tensorflow as tf
from keras.optimizer_v2 import gradient_descent
from tensorflow.keras.layers import Dense
from tensorflow.python import ipu
from tensorflow.python.ipu import ipu_strategy


class CastingSGD(tf.keras.optimizers.SGD):
    """Casts accumulated gradients to the type of their variable."""

    def apply_gradients(self, grads_and_vars, name=None):
        return super().apply_gradients([(tf.cast(g, v.dtype), v) for g, v in grads_and_vars], name)


strategy = ipu_strategy.IPUStrategy()
with strategy.scope():
    inputs = tf.keras.layers.Input(shape=(4))
    outputs = Dense(1, kernel_initializer="zeros")(inputs)
    model = tf.keras.Model(inputs, outputs)

    optimizer = CastingSGD(lr=0.5)
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    @tf.function(experimental_compile=True)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = [tf.cast(g, tf.float16) for g in tape.gradient(loss, model.trainable_variables)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        queue.enqueue(loss)

    for _ in range(2):
        strategy.run(step, args=(tf.eye(4), tf.ones([4, 1])))
    print("losses", *(float(loss) for loss in queue))

    x = tf.data.Dataset.from_tensor_slices((tf.eye(4), tf.ones([4, 1]))).batch(1, drop_remainder=True)
    model.compile(gradient_descent.SGD(lr=0.1), loss="mse", steps_per_execution=x.cardinality())
    history = model.fit(x, epochs=2, verbose=0)
    print("fit", len(history.history["loss"]), model.optimizer.lr.numpy())  # pyright: ignore[reportOptionalMemberAccess]  # The property is set later.
