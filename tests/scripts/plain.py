"""Trains the models of programs in plain Keras 2: `plain.py PROGRAM --results FILE`, and arguments as for the program."""

import contextlib
import importlib.util
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import options
import tensorflow as tf
from tensorflow import keras


def load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def micro_batches(dataset, size):
    """The batches of a dataset anew, so many examples each."""
    return iter(dataset.unbatch().batch(size, drop_remainder=True))


def train(model, loss_of, apply, batches, updates, count, after=lambda update: None):
    """Updates weights with the mean gradient of `count` batches each; gives the mean losses of the batches of each update.

    `loss_of(batch)` is a dict, in which `"loss"` is to be minimized, and `apply(gradients)` updates the weights. After each
    update comes `after(its number)`.
    """

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            losses = loss_of(batch)
        gradients = tape.gradient(losses["loss"], model.trainable_variables)
        return losses, [tf.cast(tf.convert_to_tensor(gradient), tf.float32) / count for gradient in gradients]

    history = []
    for update in range(updates):
        losses, gradients = zip(*(step(next(batches)) for _ in range(count)))
        apply([tf.add_n(parts) for parts in zip(*gradients)])
        history.append(means(losses))
        after(update)
    return history


def means(logs):
    return {name: float(np.mean([one[name] for one in logs])) for name in logs[0]}


def by_execution(history, updates):
    """The means of so many updates each."""
    parts = [history[start : start + updates] for start in range(0, len(history), updates)]
    return [means(part) for part in parts]


def sgd(model, schedule, momentum):
    optimizer = keras.optimizers.SGD(schedule, momentum=momentum)
    return lambda gradients: optimizer.apply_gradients(zip(gradients, model.trainable_variables))


class GroupNormalization(keras.layers.Layer):
    """Every `groups`-th channel is in the same group."""

    def __init__(self, groups, epsilon, **kwargs):
        super().__init__(**kwargs)
        self.groups = groups
        self.epsilon = epsilon

    def build(self, shape):
        self.gamma = self.add_weight("gamma", [shape[-1]], initializer="ones")
        self.beta = self.add_weight("beta", [shape[-1]], initializer="zeros")

    def call(self, x):
        batch, height, width, channels = x.shape
        grouped = tf.reshape(x, [batch, height, width, channels // self.groups, self.groups])
        mean, variance = tf.nn.moments(grouped, [1, 2, 3], keepdims=True)
        normalized = (grouped - mean) / tf.sqrt(variance + self.epsilon)
        return tf.reshape(normalized, x.shape) * self.gamma + self.beta


def resnet(words):
    program = load("resnet")
    program.GroupNormalization = GroupNormalization
    program.keras_ipu = SimpleNamespace(PipelineStage=lambda stage: contextlib.nullcontext())
    args = program.parse_arguments(words)
    config = program.BatchConfig(args)
    options.seed(args.seed)
    # Batch normalization has the statistics of what all replicas have at a time.
    args.micro_batch_size *= args.replicas
    model = program.build_model(args)
    schedule = program.make_schedule(args, config)
    accuracy = keras.metrics.sparse_categorical_accuracy
    descend = sgd(model, schedule, args.momentum)

    def loss_of(batch, training=True):
        pictures, labels = batch
        target = tf.one_hot(labels[:, 0], args.num_classes)
        probabilities = model(pictures, training=training)
        losses = keras.losses.categorical_crossentropy(target, probabilities, label_smoothing=args.label_smoothing)
        return {"loss": tf.reduce_mean(losses), "accuracy": tf.reduce_mean(accuracy(labels, probabilities))}

    def apply(gradients):
        pairs = zip(gradients, model.trainable_variables)
        descend([grad + args.weight_decay * var if "kernel" in var.name else grad for grad, var in pairs])

    data = [
        micro_batches(program.make_dataset(args, config, args.seed + number), args.micro_batch_size)
        for number in (0, 1)
    ]
    history = train(model, loss_of, apply, data[0], config.weight_updates, config.count)
    executions = by_execution(history, args.updates_per_execution)
    for number, logs in enumerate(executions):
        logs["enqueued_loss"] = logs["loss"]
        logs["learning_rate"] = float(schedule((number + 1) * args.updates_per_execution - 1))
    validation = means([loss_of(next(data[1]), training=False) for _ in range(config.steps_per_execution)])
    return {"executions": executions, "validation": validation}


def bert(words):
    program = load("bert")
    args = program.parse_arguments(words)
    options.seed(args.seed)
    keras.mixed_precision.set_global_policy(keras.mixed_precision.Policy("float16"))
    gelu = partial(tf.nn.gelu, approximate=True)
    sys.modules["bert_model"].ipu = SimpleNamespace(nn_ops=SimpleNamespace(gelu=gelu))
    model = program.build_model(args)
    losses = {"mlm": program.MlmLoss(), "nsp": program.NspLoss()}
    updates = args.executions * args.updates_per_execution
    schedule = program.make_schedule(args)

    def loss_of(batch):
        inputs, labels = batch
        outputs = model(inputs, training=True)
        found = {f"{name}_queue": loss(labels[name], outputs[name]) for name, loss in losses.items()}
        return {**found, "loss": sum(found.values()) * args.loss_scaling}

    apply = lamb(model, schedule, args.weight_decay, args.loss_scaling)
    batches = micro_batches(program.make_dataset(args), args.micro_batch_size)
    history = train(model, loss_of, apply, batches, updates, args.gradient_accumulation_count)
    executions = by_execution(history, args.updates_per_execution)
    for number, logs in enumerate(executions):
        logs["loss"] /= args.loss_scaling
        logs["learning_rate"] = float(schedule((number + 1) * args.updates_per_execution - 1))
    return executions


def lamb(model, schedule, weight_decay, loss_scaling):
    """LAMB (https://arxiv.org/abs/1904.00962) with moments in float32."""
    weights = model.trainable_variables
    moments = [[np.zeros(weight.shape, np.float32) for weight in weights] for _ in range(2)]
    updates = []

    def apply(gradients):
        updates.append(True)
        rate = float(schedule(len(updates) - 1))
        for weight, gradient, m, v in zip(weights, gradients, *moments):
            value, unscaled = weight.numpy().astype(np.float32), gradient.numpy() / loss_scaling
            m[...] = 0.9 * m + 0.1 * unscaled
            v[...] = 0.999 * v + 0.001 * unscaled**2
            step = m / (1 - 0.9 ** len(updates)) / (np.sqrt(v / (1 - 0.999 ** len(updates))) + 1e-6)
            if not any(name in weight.name for name in ("bias", "beta")):
                step += weight_decay * value
            lengths = np.linalg.norm(value), np.linalg.norm(step)
            if all(lengths) and not any(name in weight.name for name in ("bias", "beta", "gamma")):
                step *= lengths[0] / lengths[1]
            weight.assign(value - rate * step)

    return apply


def unet(words):
    program = load("unet")
    args = program.parse_arguments([*words, "--num-ipus", "0"])
    options.seed(args.seed)
    model = program.build_model(args)
    steps = args.updates_per_execution * args.gradient_accumulation_count
    examples = steps * args.micro_batch_size
    schedule = keras.optimizers.schedules.ExponentialDecay(
        args.learning_rate, args.updates_per_execution, args.decay_rate
    )

    def loss_of(batch, training=True):
        images, labels = batch
        logits = model(images, training=training)
        return {
            "loss": program.dice_and_cross_entropy(labels, logits),
            "dice": program.dice(labels, logits),
            "cross_entropy": program.cross_entropy(labels, logits),
        }

    data = [iter(program.make_dataset(args, examples, args.seed + number)) for number in (0, 1)]
    updates, count = args.executions * args.updates_per_execution, args.gradient_accumulation_count
    validated = []

    def validate(update):
        if (update + 1) % args.updates_per_execution == 0:
            batches = [next(data[1]) for _ in range(steps)]
            masks = [np.argmax(model(images), axis=-1) for images, _ in batches]
            validated.append(means([loss_of(batch, training=False) for batch in batches]))
            validated[-1]["bright"] = np.concatenate(masks).mean(axis=(1, 2)).tolist()

    history = train(model, loss_of, sgd(model, schedule, args.momentum), data[0], updates, count, validate)
    executions = by_execution(history, args.updates_per_execution)
    found = {name: [logs[name] for logs in executions] for name in executions[0]}
    found["bright"] = max(validated, key=lambda logs: logs["dice"])["bright"]
    return {**found, **{f"val_{name}": [logs[name] for logs in validated] for name in history[0]}}


def message_passing(words):
    program = load("message_passing")
    program.LayerNormalization = keras.layers.LayerNormalization
    flags = program.FLAGS
    flags(["message_passing", "--gather_scatter=debug", *words])
    options.seed(flags.seed)
    model = program.GraphClassifier()
    optimizer = keras.optimizers.Adam(flags.lr, epsilon=1e-6)
    accuracies = []

    def loss_of(pack):
        loss, accuracy = program.loss_of(model, **pack)
        return {"loss": loss, "accuracy": accuracy}

    def apply(gradients):
        optimizer.learning_rate = flags.lr * flags.lr_decay ** (len(accuracies) // flags.steps_per_epoch)
        accuracies.append(True)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    batches = iter(program.make_dataset(flags.seed))
    model(tuple(next(batches)[name] for name in ("types", "lengths", "senders", "receivers", "graph_of_node")))
    batches = iter(program.make_dataset(flags.seed))
    history = train(model, loss_of, apply, batches, flags.epochs * flags.steps_per_epoch, flags.replicas)
    return {name: [one[name] for one in history] for name in ("loss", "accuracy")}


def time_series(words):
    program = load("time_series")
    args = program.parse_arguments(words)
    model = program.create_model(args, keras.layers.LSTM)
    program.compile_model(args, model, program.make_dataset(args)[1])
    with tempfile.TemporaryDirectory() as folder:
        record = program.train(args, model, folder)
        return {**program.use_model(args, model), **program.results_of(args, model, record, folder)}


def abc_simulation(words):
    program = load("abc_simulation")
    args = program.parse_arguments(words)
    data = program.make_data(args)
    draw = tf.function(partial(program.iteration, args, data), autograph=False)
    chunks, kept, number = [], 0, 0
    while kept < args.wanted:
        samples = [tf.nest.map_structure(np.asarray, draw(number, replica)) for replica in tf.range(args.replicas)]
        for start in range(0, args.samples, args.chunk_size):
            part = slice(start, start + args.chunk_size)
            of_replicas = [{name: values[part] for name, values in one.items()} for one in samples]
            hits = sum(int(np.sum(chunk["distance"] <= args.tolerance)) for chunk in of_replicas)
            chunks += of_replicas if hits else []
            kept += hits
        number += 1
    # Replicas share an update: it is one of a batch as large as theirs together.
    args.batch_size, args.replicas = args.batch_size * args.replicas, 1
    return program.results_of(args, data, program.nearest(args, chunks), number)


def two_players(words):
    program = load("two_players")
    args = program.parse_arguments(words)
    players = program.TwoPlayers(args)
    step = tf.function(players.step, autograph=False)
    state, losses = players.initial_state(), []
    for seen, made in program.make_dataset(args).take(args.runs * args.iterations):
        state, of_step = step(state, seen, made)
        losses.append({name: np.asarray(value)[np.newaxis] for name, value in of_step.items()})
    return program.summary(args, players, losses)


if __name__ == "__main__":
    name, _, results, *words = sys.argv[1:]
    Path(results).write_text(json.dumps(globals()[name](words)))
