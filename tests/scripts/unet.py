"""Segments discs by a U-Net, whose skip connections are cropped by an operation of its own for tiles."""

import logging
import os
import time

import numpy as np
import options
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras.layers import Conv2D, Conv2DTranspose, Cropping2D, Input, MaxPooling2D
from tensorflow.python import ipu

logger = logging.getLogger("unet")

LIBRARY = os.path.join(os.path.dirname(os.path.realpath(__file__)), "libcenter_crop.so")


def parse_arguments(words=None):
    return options.parse(
        words,
        num_ipus=2,  # 0 is the host.
        micro_batch_size=2,
        gradient_accumulation_count=4,
        executions=3,
        updates_per_execution=2,
        image_size=60,
        filters=[4, 8, 16],  # By depth.
        num_classes=2,
        learning_rate=0.05,
        decay_rate=0.9,  # Of the learning rate, in an execution.
        momentum=0.9,
        loss_scale=128.0,
        seed=7,
    )


def make_images(args, count, seed):
    """Grey images with a bright disc each, and the classes of their pixels within the valid convolutions' reach."""
    generator = np.random.RandomState(seed)
    rows, columns = np.mgrid[: args.image_size, : args.image_size]
    center = generator.uniform(0.35, 0.65, [count, 2, 1, 1]) * args.image_size
    radius = generator.uniform(0.1, 0.25, [count, 1, 1]) * args.image_size
    inside = (rows - center[:, 0]) ** 2 + (columns - center[:, 1]) ** 2 < radius**2
    images = inside + generator.normal(0.0, 0.3, inside.shape)
    margin = (args.image_size - output_size(args)) // 2
    labels = inside[:, margin:-margin, margin:-margin]
    return images[..., np.newaxis].astype(np.float32), labels[..., np.newaxis].astype(np.int32)


def make_dataset(args, count, seed):
    def prepare(image, label):
        return tf.image.per_image_standardization(image), label

    dataset = tf.data.Dataset.from_tensor_slices(make_images(args, count, seed))
    dataset = dataset.map(prepare, num_parallel_calls=tf.data.experimental.AUTOTUNE).cache().repeat()
    return dataset.batch(args.micro_batch_size, drop_remainder=True).prefetch(tf.data.experimental.AUTOTUNE)


class CenterCrop(keras.layers.Layer):
    """Cuts a square out of the middle of images, where they are, by code for tiles."""

    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def call(self, inputs):
        batch, height, _, channels = inputs.shape
        fraction = str(self.size / height)
        outputs = {
            "output_types": [inputs.dtype],
            "output_shapes": [tf.TensorShape([batch, self.size, self.size, channels])],
        }
        return ipu.custom_ops.precompiled_user_op(
            [inputs], LIBRARY, outs=outputs, attributes=fraction, gradient_attributes=fraction
        )[0]

    def get_config(self):
        return {**super().get_config(), "size": self.size}


def crop(x, size, name, on_ipu):
    if on_ipu:
        return CenterCrop(size, name=name)(x)
    return Cropping2D((x.shape[1] - size) // 2, name=name)(x)


def sizes(args):
    """Height of an encoder's output by depth, and of what the decoder makes beside it."""
    encoded, size = [], args.image_size
    for _ in args.filters:
        encoded.append(size - 4)
        size = (size - 4) // 2
    decoded, size = [], encoded[-1]
    for _ in args.filters[:-1]:
        decoded.append(2 * size)
        size = 2 * size - 4
    return encoded, decoded[::-1], size


def output_size(args):
    return sizes(args)[-1]


def double_convolution(x, filters, name):
    for number in range(2):
        x = Conv2D(
            filters, 3, activation="relu", kernel_initializer="he_normal", padding="valid", name=f"{name}_conv_{number}"
        )(x)
    return x


def build_model(args):
    _, decoded, _ = sizes(args)
    inputs = Input((args.image_size, args.image_size, 1), batch_size=args.micro_batch_size)
    skips, x = [], inputs
    for depth, filters in enumerate(args.filters):
        x = double_convolution(x, filters, f"encoder_{depth}")
        if depth < len(decoded):
            skips.append(crop(x, decoded[depth], f"encoder_{depth}_crop", args.num_ipus > 0))
            x = MaxPooling2D(2, name=f"encoder_{depth}_pool")(x)
    for depth in reversed(range(len(skips))):
        x = Conv2DTranspose(args.filters[depth], 2, strides=2, name=f"decoder_{depth}_up")(x)
        x = tf.concat([skips[depth], x], axis=-1)
        x = double_convolution(x, args.filters[depth], f"decoder_{depth}")
    logits = Conv2D(args.num_classes, 1, kernel_initializer="he_normal", dtype=tf.float32, name="logits")(x)
    return keras.Model(inputs, logits, name="unet")


def classes_of(labels):
    return tf.cast(tf.squeeze(labels, -1), tf.int32)  # Metrics get labels in the type of the predictions.


def cross_entropy(labels, logits):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes_of(labels), logits)
    return tf.reduce_mean(losses)


def dice_of_classes(labels, probabilities):
    labels = tf.one_hot(classes_of(labels), probabilities.shape[-1], dtype=probabilities.dtype)
    both = tf.reduce_sum(labels * probabilities, axis=[1, 2])
    either = tf.reduce_sum(labels + probabilities, axis=[1, 2])
    return (2 * both + 1.0) / (either + 1.0)


def dice_and_cross_entropy(labels, logits):
    dice = tf.reduce_mean(dice_of_classes(labels, tf.nn.softmax(logits)))
    return cross_entropy(labels, logits) + (1.0 - dice)


def dice(labels, logits):
    chosen = tf.one_hot(tf.argmax(logits, axis=-1), logits.shape[-1], dtype=logits.dtype)
    return tf.reduce_mean(dice_of_classes(labels, chosen)[:, 1:])


def make_optimizer(args):
    def divide(gradients_and_variables):
        return [
            (gradient / args.gradient_accumulation_count, variable) for gradient, variable in gradients_and_variables
        ]

    schedule = keras.optimizers.schedules.ExponentialDecay(
        args.learning_rate, decay_steps=args.updates_per_execution, decay_rate=args.decay_rate, staircase=False
    )
    optimizer = keras.optimizers.SGD(schedule, momentum=args.momentum, gradient_transformers=[divide])
    return tf.keras.mixed_precision.LossScaleOptimizer(optimizer, False, args.loss_scale)


def assign_stages(model):
    """What goes down is in the first stage, with the crops, and what goes up in the second."""
    assignments = model.get_pipeline_stage_assignment()
    stage = 0
    for assignment in assignments:
        if assignment.layer.name.startswith("decoder"):
            stage = 1
        assignment.pipeline_stage = stage
    model.set_pipeline_stage_assignment(assignments)


class Throughput(keras.callbacks.Callback):
    """Logs how many images a second went through the model in each execution."""

    def __init__(self, images):
        super().__init__()
        self.images = images
        self.start = None

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self.start
        logger.info("execution %d: loss %.4f, %.1f images/s", epoch, logs["loss"], self.images / seconds)


def configure(args):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = args.num_ipus
    config.convolutions.poplar_options = {"availableMemoryProportion": "0.3", "partialsType": "float"}
    config.allow_recompute = True
    config.optimizations.minimum_remote_tensor_size = 5000
    config.configure_ipu_system()


def main(args):
    options.seed(args.seed)
    keras.mixed_precision.set_global_policy("float32")
    configure(args)
    steps = args.updates_per_execution * args.gradient_accumulation_count  # In one execution.
    examples = steps * args.micro_batch_size
    dataset = make_dataset(args, examples, args.seed)
    validation = make_dataset(args, examples, args.seed + 1)

    with ipu.ipu_strategy.IPUStrategy().scope():
        model = build_model(args)
        assign_stages(model)
        model.print_pipeline_stage_assignment_summary()
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=args.gradient_accumulation_count,
            device_mapping=[0, 1],
            pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Interleaved,
            recomputation_mode=ipu.ops.pipelining_ops.RecomputationMode.Auto,
            offload_weight_update_variables=False,
        )
        model.set_replication_options(replicated_metric_reduction_method="MEAN")
        model.compile(
            optimizer=make_optimizer(args),
            loss=dice_and_cross_entropy,
            metrics=[dice, cross_entropy],
            steps_per_execution=steps,
        )
        model.summary(print_fn=logger.info)
        best = os.path.join("model", "best")
        checkpoint = keras.callbacks.ModelCheckpoint(
            best, monitor="val_dice", mode="max", save_best_only=True, save_weights_only=True
        )
        history = model.fit(
            dataset,
            steps_per_epoch=steps,
            epochs=args.executions,
            callbacks=[Throughput(examples), checkpoint],
            verbose=0,
            validation_data=validation,
            validation_steps=steps,
            validation_freq=1,
        )
        results = {name: [float(value) for value in values] for name, values in history.history.items()}
        model.load_weights(best).expect_partial()
        masks = np.argmax(model.predict(validation, steps=steps), axis=-1)
        results["bright"] = [float(share) for share in masks.reshape([len(masks), -1]).mean(axis=1)]
    options.save(args, results)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    main(parse_arguments())
