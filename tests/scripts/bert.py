"""Pretrains a small BERT in float16: a functional model, whose layers are exchanged for an IPU's, in a pipeline."""

import logging

import numpy as np
import options
import tensorflow as tf
from bert_model import assign_stages, build_model, convert
from ipu_tensorflow_addons.keras.optimizers import LAMBIpuOptimizer
from tensorflow import keras
from tensorflow.keras.mixed_precision import LossScaleOptimizer
from tensorflow.keras.optimizers.schedules import LearningRateSchedule
from tensorflow.python import ipu
from tensorflow.python.ipu.gradient_accumulation import GradientAccumulationReductionMethod

logger = logging.getLogger("bert")


def parse_arguments(words=None):
    return options.parse(
        words,
        micro_batch_size=2,
        gradient_accumulation_count=8,
        executions=3,
        updates_per_execution=2,
        vocabulary=48,
        length=12,
        predictions=3,  # Words of a sequence that are predicted.
        hidden_size=16,
        heads=2,
        layers=2,
        dropout=0.0,
        embedding_serialization=4,
        device_mapping=[0, 1, 2, 0],
        learning_rate=0.02,  # At the end of the warm-up.
        warmup=0.3,  # The share of the weight updates before that.
        weight_decay=0.01,
        loss_scaling=128.0,
        seed=5,
    )


# Data.


def make_dataset(args):
    """Sequences of two sentences, each of which counts up from some word; in half of them the second goes on."""
    generator = np.random.RandomState(args.seed)
    count = args.updates_per_execution * args.gradient_accumulation_count * args.micro_batch_size
    half = args.length // 2
    first = generator.randint(2, args.vocabulary, size=[count, 1])
    goes_on = generator.randint(2, size=[count, 1])
    second = np.where(goes_on, first + half, generator.randint(2, args.vocabulary, size=[count, 1]))
    words = np.concatenate([first + np.arange(half), second + np.arange(args.length - half)], axis=1)
    words = 2 + (words - 2) % (args.vocabulary - 2)
    positions = np.argsort(generator.uniform(size=words.shape), axis=1)[:, : args.predictions]
    labels = np.take_along_axis(words, positions, axis=1)
    labels[:, -1] *= generator.randint(2, size=count)  # 0 is a place that is not predicted.
    np.put_along_axis(words, positions, 1, axis=1)
    padding = generator.randint(0, 3, size=[count, 1])
    inputs = {
        "input_ids": words.astype(np.int32),
        "token_type_ids": np.tile(np.arange(args.length) >= half, [count, 1]).astype(np.int32),
        "attention_mask": (np.arange(args.length) < args.length - padding).astype(np.int32),
        "masked_lm_positions": positions.astype(np.int32),
    }
    dataset = tf.data.Dataset.from_tensor_slices(
        (inputs, {"mlm": labels.astype(np.int32), "nsp": goes_on.astype(np.int32)})
    )
    return dataset.batch(args.micro_batch_size, drop_remainder=True).repeat()


# Losses, learning rate, optimizer.


class MlmLoss(keras.losses.Loss):
    """The mean cross entropy of the words that are predicted."""

    def call(self, y_true, y_pred):
        labels = tf.cast(y_true, tf.int32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(y_pred, tf.float32))
        weights = tf.cast(labels > 0, tf.float32)
        return tf.reduce_sum(losses * weights) / (tf.reduce_sum(weights) + 1e-5)


class NspLoss(keras.losses.Loss):
    """The mean cross entropy of whether the second sentence goes on with the first."""

    def call(self, y_true, y_pred):
        labels = tf.cast(tf.squeeze(y_true, -1), tf.int32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(y_pred, tf.float32)))


def in_enqueuer(loss_class):
    """A class of losses that send what they compute to the host."""

    class Enqueuer(loss_class):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def call(self, y_true, y_pred):
            value = super().call(y_true, y_pred)
            self.queue.enqueue(value)
            return value

    return Enqueuer


class WarmupDecay(LearningRateSchedule):
    """Rises in a line, and falls in one."""

    def __init__(self, peak, warmup, updates, queue=None):
        super().__init__()
        self.peak, self.warmup, self.updates, self.queue = peak, warmup, updates, queue

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising = (step + 1) / (self.warmup + 1)
        falling = (self.updates - step) / (self.updates - self.warmup)
        rate = self.peak * tf.minimum(rising, falling)
        if self.queue is not None:
            self.queue.enqueue(rate)
        return rate

    def get_config(self):
        return {"peak": self.peak, "warmup": self.warmup, "updates": self.updates}


class StaticLossScaleOptimizer(LossScaleOptimizer):
    """A loss scale that stays, taken away from the gradients in float32 right before the update."""

    def __init__(self, inner_optimizer, loss_scale):
        super().__init__(inner_optimizer, dynamic=False, initial_scale=loss_scale, dynamic_growth_steps=None)

        def unscale(gradients_and_variables):
            return [
                (tf.cast(gradient, tf.float32) / loss_scale, variable) for gradient, variable in gradients_and_variables
            ]

        self.inner_optimizer.gradient_transformers.insert(0, unscale)

    def get_unscaled_gradients(self, grads):
        return grads

    def _raise_if_strategy_unsupported(self):
        pass


def make_schedule(args, queue=None):
    updates = args.executions * args.updates_per_execution
    return WarmupDecay(args.learning_rate, float(int(args.warmup * updates)), float(updates), queue)


def make_optimizer(args, schedule):
    optimizer = LAMBIpuOptimizer(
        learning_rate=schedule,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay_rate=args.weight_decay,
        exclude_from_weight_decay=["bias", "beta"],
        exclude_from_layer_adaptation=["bias", "beta", "gamma"],
        m_dtype=tf.float32,
        v_dtype=tf.float32,
        optimizer_compute_precisions=(tf.float32, tf.float16),
        outline_apply_gradients=True,
        outline_apply_gradients_kwargs={"unique_sharding": True},
        gradient_transformers=[],
    )
    return StaticLossScaleOptimizer(optimizer, args.loss_scaling)


class QueuesCallback(keras.callbacks.Callback):
    """Puts the means of what queues have for the host into the logs, and keeps these."""

    def __init__(self, queues):
        super().__init__()
        self.queues = queues
        self.executions = []

    def on_train_batch_end(self, batch, logs=None):
        for name, queue in self.queues.items():
            if queue.enqueued:
                logs[name] = float(np.mean(queue.dequeue().numpy()))
        self.executions.append({name: float(value) for name, value in logs.items()})
        logger.info("%s", self.executions[-1])


def configure(args):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1 << max(args.device_mapping).bit_length()
    config.allow_recompute = True
    config.floating_point_behaviour.esr = ipu.config.StochasticRoundingBehaviour.OFF
    config.optimizations.merge_infeed_io_copies = True
    config.optimizations.math.fast = True
    config.scheduling.algorithm = ipu.config.SchedulingAlgorithm.SHORTEST_PATH
    config.matmuls.poplar_options["partialsType"] = "float"
    config.configure_ipu_system()


def main(args):
    options.seed(args.seed)
    keras.mixed_precision.set_global_policy(keras.mixed_precision.Policy("float16"))
    configure(args)
    steps = args.updates_per_execution * args.gradient_accumulation_count

    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        model = convert(build_model(args), args)
        assign_stages(model, args)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=args.gradient_accumulation_count,
            gradient_accumulation_reduction_method=GradientAccumulationReductionMethod.RUNNING_MEAN,
            pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Grouped,
            device_mapping=args.device_mapping,
            recomputation_mode=ipu.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
            offload_weight_update_variables=False,
            replicated_optimizer_state_sharding=False,
        )
        rates = ipu.ipu_outfeed_queue.IPUOutfeedQueue(outfeed_mode=ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST)
        losses = {"mlm": in_enqueuer(MlmLoss)(), "nsp": in_enqueuer(NspLoss)()}
        model.compile(
            optimizer=make_optimizer(args, make_schedule(args, rates)), loss=losses, steps_per_execution=steps
        )
        callback = QueuesCallback(
            {"learning_rate": rates, "mlm_queue": losses["mlm"].queue, "nsp_queue": losses["nsp"].queue}
        )
        model.fit(make_dataset(args), steps_per_epoch=steps, epochs=args.executions, callbacks=[callback], verbose=0)
    options.save(args, callback.executions)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    main(parse_arguments())
