"""Trains a generator of points against a discriminator, both in one loop on the IPU, and has it match the data's moments too.

The data are points on a ring of Gaussian blobs. Each iteration of the loop updates the discriminator a few times and the
generator once, with an optimizer each, and carries the state of both players: averages of their losses and of the moments.
"""

import numpy as np
import options
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.python import ipu
from tensorflow.python.ipu import ipu_infeed_queue, ipu_outfeed_queue


def parse_arguments(arguments=None):
    return options.parse(
        arguments,
        blobs=5,
        samples=640,
        batch_size=32,
        noise_size=3,  # Numbers that the generator makes a point of.
        units=24,
        runs=3,
        iterations=20,  # Of the loop, in a run.
        discriminator_steps=2,  # Its updates in each iteration.
        generator_rate=4e-3,
        discriminator_rate=2e-3,
        decay_steps=50,  # After which the generator's rate is 0.7 of it.
        penalty=0.1,  # The weight of the squared gradient at points of the data.
        moments=0.5,  # The weight of the difference of moments.
        averaging=0.9,  # The decay of the averages that the loop carries.
        seed=3,
    )


# Data.


def make_points(args):
    """Points on the ring [samples, 2], and the blob of each [samples]."""
    random = np.random.RandomState(args.seed)
    blob = random.randint(args.blobs, size=args.samples)
    angle = 2 * np.pi * blob / args.blobs
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.08 * random.normal(size=[args.samples, 2])
    return points.astype(np.float32), blob.astype(np.int32)


def make_dataset(args):
    """Elements of two dicts: what the discriminator sees of an iteration, and what the generator does."""
    points, blob = make_points(args)
    random = np.random.RandomState(args.seed + 1)
    noise = random.normal(size=[4 * args.samples, args.noise_size]).astype(np.float32)
    steps = args.discriminator_steps

    real = tf.data.Dataset.from_tensor_slices({"points": points, "blob": blob})
    real = real.shuffle(args.samples, seed=args.seed).repeat().batch(args.batch_size, drop_remainder=True)
    drawn = tf.data.Dataset.from_tensor_slices(noise).repeat().batch(args.batch_size, drop_remainder=True)
    seen = tf.data.Dataset.zip((real, drawn)).map(lambda real, noise: {**real, "noise": noise})
    seen = seen.batch(steps, drop_remainder=True)
    made = drawn.skip(7).map(lambda noise: {"noise": noise})
    return tf.data.Dataset.zip((seen, made)).prefetch(tf.data.experimental.AUTOTUNE)


# Players.


def initializer(seed):
    return keras.initializers.VarianceScaling(scale=2.0, mode="fan_in", seed=seed)


def create_generator(args):
    """Noise to points; batch normalization follows the noise of each iteration."""
    return keras.Sequential(
        [
            layers.Dense(args.units, kernel_initializer=initializer(args.seed), input_shape=(args.noise_size,)),
            layers.BatchNormalization(momentum=0.9),
            layers.LeakyReLU(0.2),
            layers.Dense(args.units, kernel_initializer=initializer(args.seed + 1)),
            layers.BatchNormalization(momentum=0.9),
            layers.LeakyReLU(alpha=0.2),
            layers.Dense(2, kernel_initializer=initializer(args.seed + 2)),
        ],
        name="generator",
    )


class SpectralDense(layers.Dense):
    """A dense layer whose kernel is divided by an estimate of its largest singular value, improved at each training call."""

    def build(self, input_shape):
        super().build(input_shape)
        self.direction = self.add_weight(
            "direction",
            shape=(1, self.units),
            initializer=keras.initializers.RandomNormal(seed=self.units),
            trainable=False,
        )

    def call(self, inputs, training=None):
        left = tf.math.l2_normalize(tf.matmul(self.direction, self.kernel, transpose_b=True))
        right = tf.math.l2_normalize(tf.matmul(left, self.kernel))
        left, right = tf.stop_gradient(left), tf.stop_gradient(right)
        if training:
            self.direction.assign(right)
        norm = tf.matmul(tf.matmul(left, self.kernel), right, transpose_b=True)
        outputs = tf.matmul(inputs, self.kernel / norm)
        return self.activation(tf.nn.bias_add(outputs, self.bias))


class Discriminator(keras.Model):
    """Points to a logit for whether they are of the data, and to logits for the blob that they may be of."""

    def __init__(self, args, name="discriminator"):
        super().__init__(name=name)
        self.hidden = [
            SpectralDense(
                args.units, "tanh", kernel_initializer=initializer(args.seed + 3 + index), name=f"hidden_{index}"
            )
            for index in range(2)
        ]
        self.real = layers.Dense(1, kernel_initializer=initializer(args.seed + 5), name="real")
        self.blob = layers.Dense(args.blobs, kernel_initializer=initializer(args.seed + 6), name="blob")

    def call(self, points, training=None):
        features = points
        for layer in self.hidden:
            features = layer(features, training=training)
        return {"real": self.real(features), "blob": self.blob(features)}


def create_optimizers(args):
    rate = keras.optimizers.schedules.ExponentialDecay(args.generator_rate, args.decay_steps, 0.7)
    return (
        keras.optimizers.Adam(learning_rate=rate, beta_1=0.5, beta_2=0.9, epsilon=1e-6),
        keras.optimizers.Adam(lr=args.discriminator_rate, beta_1=0.5, beta_2=0.99),
    )


# Losses.


def moments_of(points):
    """The mean [2] and the covariance [2, 2] of points."""
    mean = tf.reduce_mean(points, axis=0)
    centred = points - mean
    return {"mean": mean, "covariance": tf.matmul(centred, centred, transpose_a=True) / float(points.shape[0])}


def difference(one, other):
    """The squared distance of two sets of moments."""
    return tf.add_n([tf.reduce_sum(tf.math.squared_difference(one[name], other[name])) for name in sorted(one)])


def real_loss(value, logits):
    """The cross entropy of logits [batch, 1] and one smoothed label for all of them."""
    loss = keras.losses.BinaryCrossentropy(True, label_smoothing=0.1, reduction=keras.losses.Reduction.NONE)
    return tf.reduce_mean(loss(tf.fill(tf.shape(logits), value), logits))


def blob_loss(blob, logits):
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(blob, logits, from_logits=True))


class TwoPlayers:
    """Both players with their optimizers, and one iteration of their game."""

    def __init__(self, args):
        self.args = args
        self.generator = create_generator(args)
        self.discriminator = Discriminator(args)
        self.discriminator(keras.Input(shape=(2,)))
        self.generator_optimizer, self.discriminator_optimizer = create_optimizers(args)

    def initial_state(self):
        """What the loop carries at first: of the generator, and of the discriminator."""
        generator = {"loss": tf.constant(0.0), "mean": tf.zeros([2]), "covariance": tf.zeros([2, 2])}
        return generator, {"loss": tf.constant(0.0), "penalty": tf.constant(0.0), "hits": tf.constant(0)}

    def step(self, state, seen, made):
        """One iteration: the states of both after it, and its losses."""
        generator, discriminator = state
        for index in range(self.args.discriminator_steps):
            of_step = {name: values[index] for name, values in seen.items()}
            losses, hits = self.update_discriminator(**of_step)
            discriminator = {
                "loss": self.average(discriminator["loss"], losses["loss"]),
                "penalty": self.average(discriminator["penalty"], losses["penalty"]),
                "hits": discriminator["hits"] + hits,
            }
        loss, distance, moments = self.update_generator(moments_of(seen["points"][-1]), **made)
        generator = {
            "loss": self.average(generator["loss"], loss),
            "mean": self.average(generator["mean"], moments["mean"]),
            "covariance": self.average(generator["covariance"], moments["covariance"]),
        }
        return (generator, discriminator), {"generator": loss, "discriminator": losses["loss"], "moments": distance}

    def average(self, before, value):
        return self.args.averaging * before + (1 - self.args.averaging) * value

    def update_discriminator(self, points, blob, noise):
        generated = tf.stop_gradient(self.generator(noise, training=True))
        with tf.GradientTape() as tape:
            with tf.GradientTape(watch_accessed_variables=False) as inner:
                inner.watch(points)
                of_data = self.discriminator(points, training=True)
                total = tf.reduce_sum(of_data["real"])
            slopes = inner.gradient(total, points)
            of_generator = self.discriminator(generated, training=True)
            penalty = tf.reduce_mean(tf.reduce_sum(tf.square(slopes), axis=1))
            loss = real_loss(1.0, of_data["real"])
            loss += real_loss(0.0, of_generator["real"])
            loss += blob_loss(blob, of_data["blob"]) + self.args.penalty * penalty
        variables = self.discriminator.trainable_variables
        self.discriminator_optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        found = tf.argmax(of_data["blob"], axis=-1, output_type=tf.int32)
        return {"loss": loss, "penalty": penalty}, tf.reduce_sum(tf.cast(tf.equal(found, blob), tf.int32))

    def update_generator(self, moments, noise):
        with tf.GradientTape() as tape:
            generated = self.generator(noise, training=True)
            judged = self.discriminator(generated, training=False)
            own = moments_of(generated)
            distance = difference(own, moments)
            # A point that is of one blob, and not between two, looks better.
            entropy = -tf.reduce_mean(
                tf.reduce_sum(tf.nn.softmax(judged["blob"]) * tf.nn.log_softmax(judged["blob"]), axis=-1)
            )
            loss = real_loss(1.0, judged["real"]) + self.args.moments * distance + 0.1 * entropy
        variables = self.generator.trainable_variables
        gradients = tape.gradient(loss, variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 5.0)
        self.generator_optimizer.apply_gradients(zip(gradients, variables))
        return loss, distance, own


def report(run, state):
    generator, discriminator = tf.nest.map_structure(lambda value: np.asarray(value), state)
    spread = np.sqrt(np.trace(generator["covariance"]))
    print(
        f"run {run}: generator {generator['loss']:.4f}, discriminator {discriminator['loss']:.4f}"
        f" (penalty {discriminator['penalty']:.4f}), {discriminator['hits']} blobs found, spread {spread:.3f}"
    )


def summary(args, players, losses):
    """What goes into the file of losses."""
    noise = np.random.RandomState(args.seed + 2).normal(size=[200, args.noise_size]).astype(np.float32)
    points = players.generator(noise, training=False)
    return {
        **{name: np.concatenate([run[name] for run in losses]).tolist() for name in losses[0]},
        "points": {name: np.asarray(value).tolist() for name, value in moments_of(points).items()},
        "updates": [int(players.generator_optimizer.iterations), int(players.discriminator_optimizer.iterations)],
        "rate": float(players.generator_optimizer.learning_rate(players.generator_optimizer.iterations)),
    }


def main(args):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()

    strategy = ipu.ipu_strategy.IPUStrategyV1()
    with strategy.scope():
        players = TwoPlayers(args)
        players.generator.summary()
        infeed = ipu_infeed_queue.IPUInfeedQueue(make_dataset(args))
        outfeed = ipu_outfeed_queue.IPUOutfeedQueue()

        def body(*carried_and_fed):
            *carried, seen, made = carried_and_fed
            state = tf.nest.pack_sequence_as(players.initial_state(), carried)
            state, losses = players.step(state, seen, made)
            enqueued = outfeed.enqueue(losses)
            return tf.nest.flatten(state) + [enqueued]

        @tf.function(experimental_compile=True)
        def loop(*state):
            state = ipu.loops.repeat(args.iterations, body, tf.nest.flatten(state), infeed)
            return tf.nest.pack_sequence_as(players.initial_state(), state)

        losses = []
        state = players.initial_state()
        infeed.initializer
        for run in range(args.runs):
            state = strategy.run(loop, args=state)
            losses.append({name: values.numpy() for name, values in outfeed.dequeue().items()})
            report(run, state)
        infeed.deleter
    options.save(args, summary(args, players, losses))


if __name__ == "__main__":
    main(parse_arguments())
