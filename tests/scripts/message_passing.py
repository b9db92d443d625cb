"""Tells triangles from paths in packed graphs, by messages along their edges, in a training loop of its own."""

import os
import time
from functools import partial

import numpy as np
import options
import tensorflow as tf
from absl import app, flags, logging
from ipu_tensorflow_addons.keras.layers import LayerNormalization
from ipu_tensorflow_addons.keras.optimizers import AdamIpuOptimizer
from tensorflow import keras
from tensorflow.python import ipu

flags.DEFINE_integer("replicas", 2, "copies of the model, each with its own packs", lower_bound=1)
flags.DEFINE_integer("micro_batch_size", 2, "packs in one step")
flags.DEFINE_integer("nodes_per_pack", 16, "nodes in a pack, the first of which stands for none")
flags.DEFINE_integer("edges_per_pack", 24, "edges in a pack")
flags.DEFINE_integer("graphs_per_pack", 4, "graphs in a pack, the first of which stands for none")
flags.DEFINE_integer("epochs", 4, "how often the host runs the program")
flags.DEFINE_integer("steps_per_epoch", 6, "steps of each replica in one run of the program")
flags.DEFINE_integer("node_types", 8, "rows in the table of types of nodes")
flags.DEFINE_integer("latent", 8, "features of nodes and edges")
flags.DEFINE_integer("layers", 2, "rounds of messages")
flags.DEFINE_integer("serialization", 2, "parts of the look-ups in the table")
flags.DEFINE_float("lr", 0.01, "learning rate in the first epoch")
flags.DEFINE_float("lr_decay", 0.8, "factor of the learning rate after each epoch")
flags.DEFINE_enum("gather_scatter", "grouped", ("grouped", "debug"), "by operations for tiles, or pack by pack")
flags.DEFINE_integer("seed", 3, "of weights and data")
flags.DEFINE_string("results", None, "a JSON file for losses")

FLAGS = flags.FLAGS

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "build", "grouped_gather_scatter.so")


def tiles_operation(name, inputs, size, shape):
    """One of the two operations of the library, which has code for tiles."""
    groups, _, features = inputs[0].shape
    words = [name, {tf.float32: "float", tf.float16: "half"}[inputs[0].dtype], groups, size, features]
    return ipu.custom_ops.precompiled_user_op(
        inputs,
        library_path=LIBRARY,
        attributes=" ".join(map(str, words)),
        outs={"output_types": [inputs[0].dtype], "output_shapes": [tf.TensorShape(shape)]},
        inputs_with_gradients=[0],
        name=f"grouped_{name}",
    )[0]


@tf.custom_gradient
def grouped_gather(table, indices):
    """Rows of a table for each group: [groups, rows, features] and [groups, n] give [groups, n, features]."""
    groups, rows, features = table.shape

    def gradient(upstream):
        return grouped_scatter(upstream, indices, rows), None

    return tiles_operation("gather", [table, indices], rows, [groups, indices.shape[1], features]), gradient


def grouped_scatter(data, indices, rows):
    """Sums for each group: [groups, n, features] and [groups, n] give [groups, rows, features]."""

    @tf.custom_gradient
    def scatter(data, indices):
        def gradient(upstream):
            return grouped_gather(upstream, indices), None

        groups, _, features = data.shape
        return tiles_operation("scatter", [data, indices], rows, [groups, rows, features]), gradient

    return scatter(data, indices)


def gather(table, indices):
    if FLAGS.gather_scatter == "grouped":
        return grouped_gather(table, indices)
    return tf.stack([tf.gather(table[pack], indices[pack]) for pack in range(table.shape[0])])


def scatter(data, indices, rows):
    if FLAGS.gather_scatter == "grouped":
        return grouped_scatter(data, indices, rows)
    return tf.stack([tf.math.unsorted_segment_sum(data[pack], indices[pack], rows) for pack in range(data.shape[0])])


def mlp(name, units):
    return keras.Sequential(
        [
            keras.layers.Dense(2 * units),
            LayerNormalization(epsilon=1e-3),
            keras.layers.Activation("relu"),
            keras.layers.Dense(units),
        ],
        name=name,
    )


class NodeEncoder(keras.layers.Layer):
    """Features of nodes by their types."""

    def build(self, input_shape):
        self.table = self.add_weight("table", [FLAGS.node_types, FLAGS.latent], initializer="random_normal")
        super().build(input_shape)

    def call(self, types):
        if FLAGS.gather_scatter == "grouped":
            return ipu.embedding_ops.embedding_lookup(self.table, types, serialization_factor=FLAGS.serialization)
        return tf.gather(self.table, types)


class InteractionLayer(keras.layers.Layer):
    """A round of messages: edges look at their nodes, nodes at the sum of the edges that lead to them."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.edge_model = mlp("edge_model", FLAGS.latent)
        self.node_model = mlp("node_model", FLAGS.latent)

    def call(self, inputs, training=False):
        nodes, edges, senders, receivers = inputs
        messages = tf.concat([edges, gather(nodes, senders), gather(nodes, receivers)], axis=-1)
        messages = self.edge_model(messages, training=training)
        received = scatter(messages, receivers, FLAGS.nodes_per_pack)
        update = self.node_model(tf.concat([nodes, received], axis=-1), training=training)
        return nodes + update, edges + messages


class GraphClassifier(keras.Model):
    """A logit for each graph of each pack."""

    def __init__(self):
        super().__init__(name="graph_classifier")
        self.node_encoder = NodeEncoder(name="node_encoder")
        self.edge_encoder = keras.layers.Dense(FLAGS.latent, name="edge_encoder")
        self.rounds = [InteractionLayer(name=f"round_{number}") for number in range(FLAGS.layers)]
        self.decoder = keras.layers.Dense(1, name="decoder")

    def call(self, inputs, training=False):
        types, lengths, senders, receivers, graph_of_node = inputs
        nodes = self.node_encoder(types)
        edges = self.edge_encoder(lengths[..., tf.newaxis])
        for layer in self.rounds:
            nodes, edges = layer((nodes, edges, senders, receivers), training=training)
        graphs = scatter(nodes, graph_of_node, FLAGS.graphs_per_pack)
        sizes = scatter(tf.ones_like(nodes[..., :1]), graph_of_node, FLAGS.graphs_per_pack)
        return tf.squeeze(self.decoder(graphs / tf.maximum(sizes, 1.0)), -1)


def one_pack(generator):
    """Graphs of three or four nodes: each either a ring, which is of class 1, or a path."""
    types = np.zeros([FLAGS.nodes_per_pack], np.int32)
    graph_of_node = np.zeros([FLAGS.nodes_per_pack], np.int32)
    labels = np.zeros([FLAGS.graphs_per_pack], np.int32)
    mask = np.zeros([FLAGS.graphs_per_pack], np.float32)
    pairs, first = [], 1
    for graph in range(1, FLAGS.graphs_per_pack):
        count = generator.randint(3, 5)
        nodes = np.arange(first, first + count)
        labels[graph], mask[graph] = generator.randint(2), 1.0
        types[nodes] = generator.randint(1, FLAGS.node_types, size=count)
        graph_of_node[nodes] = graph
        ends = zip(nodes, np.roll(nodes, -1)) if labels[graph] else zip(nodes[:-1], nodes[1:])
        pairs += [pair for one, other in ends for pair in ((one, other), (other, one))]
        first += count
    edges = np.zeros([FLAGS.edges_per_pack, 2], np.int32)
    edges[: len(pairs)] = pairs
    lengths = np.where(edges[:, 0], generator.uniform(0.5, 1.5, len(edges)), 0.0).astype(np.float32)
    return {
        "types": types,
        "lengths": lengths,
        "senders": edges[:, 0],
        "receivers": edges[:, 1],
        "graph_of_node": graph_of_node,
        "labels": labels,
        "mask": mask,
    }


def make_dataset(seed):
    generator = np.random.RandomState(seed)
    count = FLAGS.steps_per_epoch * FLAGS.replicas * FLAGS.micro_batch_size
    packs = [one_pack(generator) for _ in range(count)]
    packs = {name: np.stack([pack[name] for pack in packs]) for name in packs[0]}
    return tf.data.Dataset.from_tensor_slices(packs).batch(FLAGS.micro_batch_size, drop_remainder=True).repeat()


def loss_of(model, types, lengths, senders, receivers, graph_of_node, labels, mask):
    """The mean cross entropy over the graphs that are there, and how many are told right."""
    logits = model((types, lengths, senders, receivers, graph_of_node), training=True)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, logits.dtype), logits)
    right = tf.cast(tf.equal(logits > 0, labels > 0), logits.dtype)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask), tf.reduce_sum(right * mask) / tf.reduce_sum(mask)


def training_step(model, optimizer, outfeed, **pack):
    with tf.GradientTape() as tape:
        loss, accuracy = loss_of(model, **pack)
        share = loss / FLAGS.replicas  # Gradients are summed over the replicas.
    gradients = tape.gradient(share, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    outfeed.enqueue({"loss": ipu.cross_replica_ops.cross_replica_sum(share), "accuracy": accuracy})


def configure():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = FLAGS.replicas
    config.matmuls.poplar_options["availableMemoryProportion"] = "0.2"
    config.slices.poplar_options["availableMemoryProportion"] = "0.2"
    config.scheduling.algorithm = ipu.config.SchedulingAlgorithm.CHOOSE_BEST
    config.optimizations.maximum_cross_replica_sum_buffer_size = 1000000
    config.configure_ipu_system()
    return ipu.ipu_strategy.IPUStrategy()


def main(_):
    options.seed(FLAGS.seed)
    strategy = configure()
    results = {"loss": [], "accuracy": []}
    with strategy.scope():
        model = GraphClassifier()
        optimizer = AdamIpuOptimizer(FLAGS.lr, epsilon=1e-6, m_dtype=tf.float32, v_dtype=tf.float32)
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(make_dataset(FLAGS.seed))
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        @tf.function(experimental_compile=True)
        def train(steps):
            ipu.loops.repeat(steps, partial(training_step, model, optimizer, outfeed), [], infeed)

        infeed.initializer
        for epoch in range(FLAGS.epochs):
            keras.backend.set_value(optimizer.learning_rate, FLAGS.lr * FLAGS.lr_decay**epoch)
            start = time.time()
            strategy.run(train, args=[FLAGS.steps_per_epoch])
            fetched = outfeed.dequeue()
            packs = FLAGS.steps_per_epoch * FLAGS.replicas * FLAGS.micro_batch_size
            speed = packs / (time.time() - start)
            losses, accuracies = fetched["loss"].numpy(), fetched["accuracy"].numpy()
            # One value a step and replica; the sums are the same on all replicas.
            results["loss"] += losses.reshape([FLAGS.steps_per_epoch, -1])[:, 0].tolist()
            results["accuracy"] += accuracies.reshape([FLAGS.steps_per_epoch, -1]).mean(axis=1).tolist()
            logging.info(
                "epoch %d: loss %.4f, accuracy %.3f, %.0f packs/s", epoch, losses.mean(), accuracies.mean(), speed
            )
        infeed.deleter
        logging.info("%d weights, %d updates", model.count_params(), optimizer.iterations.numpy())
    options.save(FLAGS, results)


if __name__ == "__main__":
    app.run(main)
