"""Classifies pictures by a residual network with group normalization, in a pipeline of four IPUs, on two replicas."""

import logging
import time

import numpy as np
import options
import popdist
import tensorflow as tf
from ipu_tensorflow_addons.keras.layers import GroupNormalization
from tensorflow import keras
from tensorflow.keras import ipu as keras_ipu
from tensorflow.keras.optimizers.schedules import LearningRateSchedule, PolynomialDecay
from tensorflow.python import ipu
from tensorflow.python.ipu.gradient_accumulation import GradientAccumulationReductionMethod

logger = logging.getLogger("resnet")

STAGES = 4


class BatchConfig:
    """How many pictures there are in what, and how many steps make a run of the program."""

    def __init__(self, args):
        self.micro_batch_size = args.micro_batch_size
        self.count = args.gradient_accumulation_count
        self.replicas = args.replicas
        self.global_batch_size = self.micro_batch_size * self.count * self.replicas
        self.steps_per_execution = self.count * args.updates_per_execution
        self.micro_batches_per_execution = self.steps_per_execution * self.replicas
        self.weight_updates = args.updates_per_execution * args.executions


def parse_arguments(words=None):
    return options.parse(
        words,
        replicas=2,
        micro_batch_size=2,
        gradient_accumulation_count=8,
        executions=3,
        updates_per_execution=2,
        picture_size=8,
        num_classes=5,
        filters=[8, 16],  # Of each block.
        groups=4,  # Of the normalization in blocks.
        bn_momentum=0.9,
        label_smoothing=0.1,
        learning_rate=0.1,  # At the end of the warm-up.
        warmup_updates=2,
        momentum=0.9,
        weight_decay=1e-3,
        loss_scaling=64.0,
        seed=42,
    )


def make_dataset(args, config, seed):
    """Noise with a stripe whose place is the class; as many pictures as one execution takes, again and again."""
    generator = np.random.RandomState(seed)
    count = config.micro_batches_per_execution * config.micro_batch_size
    labels = generator.randint(args.num_classes, size=[count, 1]).astype(np.int32)
    pictures = generator.normal(size=[count, args.picture_size, args.picture_size, 3]).astype(np.float32)
    pictures[np.arange(count), labels[:, 0] + 1] += 1.0

    def flip(picture, label):
        return tf.image.flip_left_right(picture), label

    dataset = tf.data.Dataset.from_tensor_slices((pictures, labels))
    if popdist.isPopdistEnvSet():
        dataset = dataset.shard(popdist.getNumInstances(), popdist.getInstanceIndex())
    options = tf.data.Options()
    options.experimental_deterministic = True
    dataset = dataset.with_options(options).map(flip, num_parallel_calls=tf.data.experimental.AUTOTUNE)
    return dataset.batch(config.micro_batch_size, drop_remainder=True).repeat().prefetch(16)


def convolution(x, filters, size, strides, name):
    return keras.layers.Conv2D(
        filters, size, strides, padding="same", use_bias=False, kernel_initializer="he_normal", name=f"{name}_conv"
    )(x)


def residual_block(x, filters, strides, args, name):
    shortcut = x
    y = x
    for number, stride in enumerate((strides, 1)):
        y = GroupNormalization(args.groups, epsilon=1e-4, name=f"{name}_norm_{number}")(y)
        y = keras.layers.Activation("relu", name=f"{name}_relu_{number}")(y)
        y = convolution(y, filters, 3, stride, f"{name}_{number}")
    if strides > 1 or x.shape[-1] != filters:
        shortcut = convolution(x, filters, 1, strides, f"{name}_shortcut")
    return keras.layers.Add(name=f"{name}_add")([shortcut, y])


def build_model(args):
    """The first convolution is in stage 0, the residual blocks in those that follow, the classes in the last."""
    pictures = keras.Input((args.picture_size, args.picture_size, 3), args.micro_batch_size, name="pictures")
    with keras_ipu.PipelineStage(0):
        x = convolution(pictures, args.filters[0], 3, 1, "first")
        x = keras.layers.BatchNormalization(momentum=args.bn_momentum, name="first_norm")(x)
        x = tf.nn.relu(x)
    for group, filters in enumerate(args.filters):
        with keras_ipu.PipelineStage(group + 1):
            x = residual_block(x, filters, 2 if group else 1, args, f"group_{group}")
    with keras_ipu.PipelineStage(STAGES - 1):
        x = GroupNormalization(args.groups, epsilon=1e-4, name="last_norm")(x)
        x = keras.layers.GlobalAveragePooling2D()(tf.nn.relu(x))
        probabilities = keras.layers.Dense(args.num_classes, activation="softmax", name="classes")(x)
    return keras.Model(pictures, probabilities, name="resnet")


class SmoothedCrossentropy(keras.losses.Loss):
    """The cross entropy of classes, a part of which is spread over all of them."""

    def __init__(self, num_classes, smoothing, **kwargs):
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.smoothing = smoothing

    def call(self, y_true, y_pred):
        target = tf.one_hot(tf.cast(y_true[:, 0], tf.int32), self.num_classes, dtype=y_pred.dtype)
        target = target * (1.0 - self.smoothing) + self.smoothing / self.num_classes
        y_pred = tf.clip_by_value(y_pred, keras.backend.epsilon(), 1.0 - keras.backend.epsilon())
        return -tf.reduce_sum(target * tf.math.log(y_pred), axis=-1)


def enqueued_loss(loss_class, queue):
    """The class of losses that also send what they compute to the host."""

    class Enqueued(loss_class):
        def call(self, y_true, y_pred):
            value = super().call(y_true, y_pred)
            queue.enqueue(tf.reduce_mean(value))
            return value

    return Enqueued


class Warmup(LearningRateSchedule):
    """Rises to another schedule's first learning rate in a line."""

    def __init__(self, schedule, updates):
        super().__init__()
        self.schedule = schedule
        self.updates = float(updates)

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        return tf.cond(
            step < self.updates,
            lambda: self.schedule(0) * (step + 1) / (self.updates + 1),
            lambda: self.schedule(step - self.updates),
        )

    def get_config(self):
        return {"schedule": self.schedule, "updates": self.updates}


class CountedSteps(LearningRateSchedule):
    """Counts weight updates in float32, as a step in half precision is a whole number up to 2048 alone."""

    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule
        self.step = tf.Variable(0.0, trainable=False, dtype=tf.float32, name="fp32_step")

    def __call__(self, step):
        rate = self.schedule(self.step)
        self.step.assign_add(1.0)
        return rate

    def get_config(self):
        return {"schedule": self.schedule}


class Enqueued(LearningRateSchedule):
    """Sends each learning rate to the host."""

    def __init__(self, schedule, queue):
        super().__init__()
        self.schedule = schedule
        self.queue = queue

    def __call__(self, step):
        rate = self.schedule(step)
        self.queue.enqueue(rate)
        return rate

    def get_config(self):
        return self.schedule.get_config()


def make_schedule(args, config):
    steps = config.weight_updates - args.warmup_updates
    decay = PolynomialDecay(args.learning_rate, steps, end_learning_rate=args.learning_rate / 100, power=2.0)
    return Warmup(decay, args.warmup_updates)


def with_weight_decay(optimizer_class, factor):
    class WeightDecay(optimizer_class):
        def _resource_apply_dense(self, grad, var, apply_state=None):
            if "kernel" in var.name:
                grad = grad + factor * var
            return super()._resource_apply_dense(grad, var, apply_state)

    return WeightDecay


def with_loss_scaling(optimizer_class, factor):
    class LossScaling(optimizer_class):
        def get_gradients(self, loss, params):
            return super().get_gradients(loss * factor, params)

        def _resource_apply_dense(self, grad, var, apply_state=None):
            return super()._resource_apply_dense(grad / factor, var, apply_state)

    return LossScaling


def make_optimizer(args, config, schedule):
    def mean_of_replicas(gradients_and_variables):
        return [(gradient / config.replicas, variable) for gradient, variable in gradients_and_variables]

    optimizer_class = with_weight_decay(tf.keras.optimizers.SGD, args.weight_decay)
    optimizer_class = with_loss_scaling(optimizer_class, args.loss_scaling)
    return optimizer_class(
        learning_rate=schedule, momentum=args.momentum, gradient_transformers=[mean_of_replicas], name="sgd"
    )


class QueueCallback(keras.callbacks.Callback):
    """Puts the mean of what a queue has for the host into the logs."""

    def __init__(self, queue, name):
        super().__init__()
        self.queue = queue
        self.name = name

    def on_train_batch_end(self, batch, logs=None):
        if self.queue.enqueued:
            logs[self.name] = float(np.mean(self.queue.dequeue()))


class LogsCallback(keras.callbacks.Callback):
    """Keeps and shows the logs of each execution."""

    def __init__(self, pictures):
        super().__init__()
        self.pictures = pictures
        self.executions = []

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.time()

    def on_train_batch_end(self, batch, logs=None):
        speed = self.pictures / (time.time() - self.start)
        self.executions.append({name: float(value) for name, value in logs.items()})
        logger.info("%s, %.0f pictures/s", self.executions[-1], speed)


def configure(args):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = STAGES * args.replicas
    config.allow_recompute = True
    config.optimizations.math.fast = True
    config.floating_point_behaviour.esr = ipu.config.StochasticRoundingBehaviour.OFF
    config.convolutions.poplar_options["partialsType"] = "float"
    # The batch normalization takes the statistics of all replicas.
    config.norms.experimental.distributed_batch_norm_replica_group_size = args.replicas
    config.configure_ipu_system()


def main(args):
    options.seed(args.seed)
    config = BatchConfig(args)
    configure(args)
    dataset = make_dataset(args, config, args.seed)
    validation = make_dataset(args, config, args.seed + 1)

    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        model = build_model(args)
        model.print_pipeline_stage_assignment_summary()
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=config.count,
            gradient_accumulation_reduction_method=GradientAccumulationReductionMethod.MEAN,
            pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Grouped,
            recomputation_mode=ipu.ops.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
            offload_weight_update_variables=False,
        )
        model.set_replication_options(replicated_metric_reduction_method="MEAN")

        rates = ipu.ipu_outfeed_queue.IPUOutfeedQueue(outfeed_mode=ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST)
        losses = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        loss = enqueued_loss(SmoothedCrossentropy, losses)(args.num_classes, args.label_smoothing)
        model.compile(
            make_optimizer(args, config, Enqueued(CountedSteps(make_schedule(args, config)), rates)),
            loss,
            metrics=["accuracy"],
            steps_per_execution=config.steps_per_execution,
        )
        logs = LogsCallback(config.global_batch_size * args.updates_per_execution)
        model.fit(
            dataset,
            steps_per_epoch=config.micro_batches_per_execution,
            epochs=args.executions,
            callbacks=[QueueCallback(rates, "learning_rate"), QueueCallback(losses, "enqueued_loss"), logs],
            verbose=0,
        )

        model.compile(
            loss=SmoothedCrossentropy(args.num_classes, args.label_smoothing),
            metrics=["accuracy"],
            steps_per_execution=config.steps_per_execution,
        )
        found = model.evaluate(validation, steps=config.micro_batches_per_execution, verbose=0)
        logger.info("validation: %s", found)
    validation = dict(zip(model.metrics_names, map(float, found)))
    options.save(args, {"executions": logs.executions, "validation": validation})


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    main(parse_arguments())
