"""A functional BERT as one would write it for any device, and what makes of it one for IPUs."""

import logging
from collections import defaultdict

import tensorflow as tf
from ipu_tensorflow_addons.keras.layers import Dropout as IpuDropout
from ipu_tensorflow_addons.keras.layers import Embedding as IpuEmbedding
from ipu_tensorflow_addons.keras.layers import LayerNormalization as IpuLayerNormalization
from keras.engine.functional import Functional
from keras.engine.keras_tensor import KerasTensor
from keras.layers.core import SlicingOpLambda, TFOpLambda
from keras.utils import tf_inspect
from tensorflow import keras
from tensorflow.python import ipu

logger = logging.getLogger("bert")


class SelfAttention(keras.layers.Layer):
    """Each word looks at the words that the mask lets through."""

    def __init__(self, hidden_size, heads, **kwargs):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.heads = heads
        self.query = keras.layers.Dense(hidden_size, name="query")
        self.key = keras.layers.Dense(hidden_size, name="key")
        self.value = keras.layers.Dense(hidden_size, name="value")
        self.projection = keras.layers.Dense(hidden_size, name="projection")

    def split(self, x):
        batch, length, size = x.shape
        return tf.transpose(tf.reshape(x, [batch, length, self.heads, size // self.heads]), [0, 2, 1, 3])

    def call(self, hidden, mask, training=False):
        query, key, value = (self.split(layer(hidden)) for layer in (self.query, self.key, self.value))
        scores = tf.matmul(query, key, transpose_b=True) / tf.cast(query.shape[-1] ** 0.5, query.dtype)
        scores += (1 - tf.cast(mask[:, tf.newaxis, tf.newaxis, :], scores.dtype)) * -10000.0
        context = tf.matmul(tf.nn.softmax(scores), value)
        return self.projection(tf.reshape(tf.transpose(context, [0, 2, 1, 3]), hidden.shape))

    def get_config(self):
        return {**super().get_config(), "hidden_size": self.hidden_size, "heads": self.heads}


class FeedForward(keras.layers.Layer):
    """Two dense layers for each word."""

    def __init__(self, hidden_size, **kwargs):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.wide = keras.layers.Dense(4 * hidden_size, activation=ipu.nn_ops.gelu, name="wide")
        self.narrow = keras.layers.Dense(hidden_size, name="narrow")

    def call(self, hidden):
        return self.narrow(self.wide(hidden))

    def get_config(self):
        return {**super().get_config(), "hidden_size": self.hidden_size}


class TiedDecoder(keras.layers.Layer):
    """A logit for each word of the vocabulary, by the table of an embedding."""

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding

    def build(self, input_shape):
        self.bias = self.add_weight("bias", [self.embedding.input_dim], initializer="zeros")
        super().build(input_shape)

    def multiply(self, hidden, table):
        return tf.matmul(hidden, table, transpose_b=True)

    def call(self, hidden):
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])
        logits = self.multiply(flat, tf.cast(self.embedding.embeddings, hidden.dtype))
        return tf.reshape(logits, [*hidden.shape[:-1], self.embedding.input_dim]) + self.bias


def build_model(args):
    def integers(name, length):
        strategy = tf.distribute.get_strategy()
        return keras.Input([length], args.micro_batch_size * strategy.num_replicas_in_sync, name=name, dtype=tf.int32)

    def normalized(x, name):
        x = keras.layers.LayerNormalization(epsilon=1e-3, name=f"{name}_norm")(x)
        return keras.layers.Dropout(args.dropout, name=f"{name}_dropout")(x)

    ids, types = integers("input_ids", args.length), integers("token_type_ids", args.length)
    mask = integers("attention_mask", args.length)
    positions = integers("masked_lm_positions", args.predictions)

    def embedding(rows, name):
        initializer = keras.initializers.TruncatedNormal(stddev=0.1)
        return keras.layers.Embedding(rows, args.hidden_size, initializer, name=f"{name}_embedding")

    words = embedding(args.vocabulary, "word")
    hidden = words(ids) + embedding(2, "type")(types)
    hidden += embedding(args.length, "place")(tf.zeros_like(ids) + tf.range(args.length))
    hidden = normalized(hidden, "embedding")
    for number in range(args.layers):
        name = f"layer_{number}"
        attended = SelfAttention(args.hidden_size, args.heads, name=f"{name}_attention")(hidden, mask)
        hidden = normalized(hidden + attended, f"{name}_attention")
        hidden = normalized(hidden + FeedForward(args.hidden_size, name=f"{name}_feed_forward")(hidden), name)
    first = keras.layers.Dense(args.hidden_size, activation="tanh", name="pooler")(hidden[:, 0])
    masked = tf.gather(hidden, positions, axis=1, batch_dims=1)
    masked = keras.layers.LayerNormalization(epsilon=1e-3, name="mlm_norm")(masked)
    outputs = {"mlm": TiedDecoder(words, name="mlm")(masked), "nsp": keras.layers.Dense(2, name="nsp")(first)}
    return keras.Model([ids, types, mask, positions], outputs, name="bert")


# What makes the model one for IPUs.


class SerializedDecoder(TiedDecoder):
    """The same in parts of the vocabulary."""

    def multiply(self, hidden, table):
        parts = self.embedding.serialization_factor
        return ipu.math_ops.serialized_matmul(hidden, table, parts, "b_rows", transpose_b=True)


class GraphRewriter:
    """Calls the layers of a functional model anew, in their order, after `exchange` had a look at each."""

    def __init__(self, exchange):
        self.exchange = exchange
        self.exchanged = {}

    def layer(self, layer):
        if layer.name not in self.exchanged:
            self.exchanged[layer.name] = self.exchange(layer, self)
        return self.exchanged[layer.name]

    def rewrite(self, model):
        assert isinstance(model, Functional)
        renewed = {tensor.ref(): tensor for tensor in model.inputs}

        def renew(value):
            return renewed[value.ref()] if isinstance(value, KerasTensor) else value

        for depth in sorted(model._nodes_by_depth, reverse=True):
            for node in model._nodes_by_depth[depth]:
                if isinstance(node.outbound_layer, keras.layers.InputLayer):
                    continue
                args, kwargs = tf.nest.map_structure(renew, (node.call_args, node.call_kwargs))
                layer = self.layer(node.outbound_layer)
                if "training" in tf_inspect.getfullargspec(layer.call).args:
                    kwargs["training"] = None
                outputs = layer(*args, **kwargs)
                for old, new in zip(tf.nest.flatten(node.outputs), tf.nest.flatten(outputs)):
                    renewed[old.ref()] = new
        outputs = {name: renew(tensor) for name, tensor in zip(model.output_names, model.outputs)}
        new_model = keras.Model(model.inputs, outputs, name=model.name)
        for name, layer in self.exchanged.items():
            if layer is not model.get_layer(name):
                layer.set_weights(model.get_layer(name).get_weights())
        return new_model


def for_ipus(args):
    """What exchanges a layer for the one of the IPU."""

    def exchange(layer, rewriter):
        kind = type(layer)
        if kind is keras.layers.Embedding:
            parts = args.embedding_serialization if layer.input_dim % args.embedding_serialization == 0 else 1
            return IpuEmbedding(layer.input_dim, layer.output_dim, serialization_factor=parts, name=layer.name)
        if kind is TiedDecoder:
            return SerializedDecoder(rewriter.layer(layer.embedding), name=layer.name)
        if kind is keras.layers.LayerNormalization:
            return IpuLayerNormalization(epsilon=layer.epsilon, name=layer.name)
        if kind is keras.layers.Dropout:
            return IpuDropout(layer.rate, name=layer.name)
        return layer

    return exchange


def outlining(*kinds):
    """What has the layers of some kinds share their code on the device."""

    def exchange(layer, rewriter):
        if not isinstance(layer, kinds):
            return layer
        layer = type(layer).from_config(layer.get_config())
        call = layer.call

        def call_outlined(*args, **kwargs):
            @ipu.outlined_function(unique_sharding=False)
            def outlined():
                return call(*args, **kwargs)

            return outlined()

        layer.call = call_outlined
        return layer

    return exchange


def convert(model, args):
    model = GraphRewriter(for_ipus(args)).rewrite(model)
    model = GraphRewriter(outlining(SelfAttention, FeedForward)).rewrite(model)
    kinds = defaultdict(int)
    for layer in model.layers:
        kinds["operation" if isinstance(layer, (TFOpLambda, SlicingOpLambda)) else type(layer).__name__] += 1
    logger.info("layers: %s", dict(kinds))
    return model


def assign_stages(model, args):
    """The embeddings are in the first stage, the heads in the last, the layers evenly in those between."""
    middle = len(args.device_mapping) - 2
    stage = 0
    assignments = model.get_pipeline_stage_assignment()
    for assignment in assignments:
        name = assignment.layer.name
        if name.startswith("layer_"):
            stage = 1 + int(name.split("_")[1]) * middle // args.layers
        elif name.startswith(("pooler", "mlm", "nsp")):
            stage = len(args.device_mapping) - 1
        if isinstance(assignment.layer, SlicingOpLambda) or "gather" in name:
            stage = len(args.device_mapping) - 1
        assignment.pipeline_stage = stage
    model.set_pipeline_stage_assignment(assignments)
    model.print_pipeline_stage_assignment_summary(print_fn=logger.info)
