"""Forecasts the daily demand of shops with two LSTM layers, trained by `fit` on one IPU.

The layers before and after take categories and shops; weeks in which a shop was closed count for nothing. All callbacks of
the training are Keras's or derive from them, and the trained model is saved, loaded again, evaluated and used.
"""

import os
import tempfile
import time

import numpy as np
import options
import tensorflow as tf
from ipu_tensorflow_addons.keras.layers import PopnnLSTM
from tensorflow import keras
from tensorflow.python import ipu
from tensorflow.python.keras.utils.generic_utils import get_custom_objects

FEATURES = ["demand", "promotion", "holiday", "sine", "cosine"]


def parse_arguments(arguments=None):
    return options.parse(
        arguments,
        shops=8,
        days=100,
        window=10,  # Days that a forecast looks back.
        validation_days=20,  # The last ones, which training does not see.
        embedding_size=4,
        units=[16, 12],
        dense_units=16,
        l2=1e-4,
        micro_batch_size=16,
        epochs=4,
        learning_rate=0.02,
        warmup_epochs=1,
        patience=1,  # Epochs without a gain before the rate falls.
        seed=7,
    )


# Data.


def make_series(args):
    """Features [shops, days, features], of which the first is the demand; and which days a shop is open [shops, days]."""
    random = np.random.RandomState(args.seed)
    days = np.arange(args.days)
    level = random.uniform(0.5, 1.5, size=[args.shops, 1])
    trend = random.uniform(-0.2, 0.4, size=[args.shops, 1]) * days / args.days
    weekly = random.uniform(0.1, 0.5, size=[args.shops, 1]) * np.sin(2 * np.pi * (days + random.randint(7)) / 7)
    promotion = random.uniform(size=[args.shops, args.days]) < 0.15
    holiday = np.broadcast_to(days % 30 == 11, promotion.shape)
    noise = 0.05 * random.normal(size=promotion.shape)
    demand = level + trend + weekly + 0.5 * promotion - 0.6 * holiday + noise
    is_open = random.uniform(size=promotion.shape) > 0.05
    phase = np.broadcast_to(2 * np.pi * days / 7, promotion.shape)
    features = [demand * is_open, promotion, holiday, np.sin(phase), np.cos(phase)]
    return np.stack(features, axis=-1).astype(np.float32), is_open


def make_windows(args, validation):
    """All windows of one part of the days: inputs by name, targets [windows, 1], and weights [windows]."""
    series, is_open = make_series(args)
    split = args.days - args.validation_days
    ends = range(split, args.days) if validation else range(args.window, split)
    history, shops, targets, weights = [], [], [], []
    for shop in range(args.shops):
        for end in ends:
            window = series[shop, end - args.window : end + 1].copy()
            targets.append(window[-1:, 0].copy())
            window[1:, 0] = window[:-1, 0].copy()  # The demand of a day is known on the next one.
            history.append(window[1:])
            shops.append([shop])
            weights.append(is_open[shop, end])
    inputs = {"history": np.stack(history), "shop": np.array(shops, np.int32)}
    return inputs, np.array(targets, np.float32), np.array(weights, np.float32)


def make_dataset(args, validation=False):
    """Batches of windows in an order that follows from the seed, and how many of them an epoch has."""
    inputs, targets, weights = make_windows(args, validation)
    batches = len(targets) // args.micro_batch_size
    dataset = tf.data.Dataset.from_tensor_slices((inputs, targets, weights))
    if not validation:
        dataset = dataset.shuffle(len(targets), seed=args.seed, reshuffle_each_iteration=False)
    dataset = dataset.batch(args.micro_batch_size, drop_remainder=True).take(batches)
    if not validation:
        dataset = dataset.repeat()
    return dataset.prefetch(tf.data.experimental.AUTOTUNE), batches


# Model.


@keras.utils.register_keras_serializable(package="time_series")
class RelativeError(keras.losses.Loss):
    """The squared error in parts of a smooth size of the target, so that small shops count as large ones do."""

    def __init__(self, smoothing=0.5, name="relative_error", **kwargs):
        super().__init__(name=name, **kwargs)
        self.smoothing = smoothing

    def call(self, y_true, y_pred):
        y_true = tf.cast(y_true, y_pred.dtype)
        error = (y_pred - y_true) / (self.smoothing + tf.abs(y_true))
        return tf.reduce_mean(tf.square(error), axis=-1)

    def get_config(self):
        return {**super().get_config(), "smoothing": self.smoothing}


class Within(keras.metrics.Metric):
    """The part of the forecasts that are no further from the demand than a limit."""

    def __init__(self, limit=0.2, name="within", **kwargs):
        super().__init__(name=name, **kwargs)
        self.limit = limit
        self.hits = self.add_weight(name="hits", initializer="zeros")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        hits = tf.cast(tf.abs(y_pred - tf.cast(y_true, y_pred.dtype)) <= self.limit, self.dtype)
        weights = tf.ones_like(hits)
        if sample_weight is not None:
            weights *= tf.reshape(tf.cast(sample_weight, self.dtype), [-1, 1])
        self.hits.assign_add(tf.reduce_sum(hits * weights))
        self.total.assign_add(tf.reduce_sum(weights))

    def result(self):
        return tf.math.divide_no_nan(self.hits, self.total)

    def reset_state(self):
        keras.backend.batch_set_value([(variable, 0) for variable in self.variables])

    def get_config(self):
        return {**super().get_config(), "limit": self.limit}


get_custom_objects().update({"Within": Within})


def create_model(args, second_lstm=PopnnLSTM):
    """Embedded shops beside each day of the history, two LSTM layers, and two dense ones around a gate."""

    def initializer(offset):
        return keras.initializers.GlorotUniform(seed=args.seed + offset)

    def recurrent(offset):
        return {
            "kernel_initializer": initializer(offset),
            "recurrent_initializer": keras.initializers.Orthogonal(seed=args.seed + offset + 1),
        }

    history = keras.Input(shape=(args.window, len(FEATURES)), name="history")
    shop = keras.Input(shape=(1), dtype=tf.int32, name="shop")
    uniform = keras.initializers.RandomUniform(-0.5, 0.5, seed=args.seed)
    embedded = keras.layers.Embedding(args.shops, args.embedding_size, uniform, name="embedding")(shop)
    embedded = keras.layers.Flatten(name="flatten")(embedded)
    repeated = keras.layers.RepeatVector(args.window, name="repeat")(embedded)
    x = keras.layers.Concatenate(name="days")([history, repeated])
    x = keras.layers.LSTM(args.units[0], return_sequences=True, name="first_lstm", **recurrent(1))(x)
    x = second_lstm(args.units[1], name="second_lstm", **recurrent(3))(x)
    x = keras.layers.concatenate([x, embedded, history[:, -1, 1:]], name="last_day")
    penalty = keras.regularizers.l2(args.l2)
    gate = keras.layers.Dense(args.dense_units, "sigmoid", kernel_initializer=initializer(5), name="gate")(x)
    x = keras.layers.Dense(
        args.dense_units, "tanh", kernel_initializer=initializer(6), kernel_regularizer=penalty, name="hidden"
    )(x)
    x = keras.layers.Multiply(name="gated")([gate, x])
    # A day is like the one before, but for what the layers know better.
    change = keras.layers.Dense(1, kernel_initializer=initializer(7), kernel_regularizer=penalty, name="change")(x)
    forecast = keras.layers.Add(name="forecast")([change, history[:, -1, :1]])
    return keras.Model(inputs=[history, shop], outputs=forecast, name="demand")


def compile_model(args, model, steps):
    model.compile(
        optimizer=keras.optimizers.Adam(lr=args.learning_rate, epsilon=1e-6),
        loss=RelativeError(),
        metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
        weighted_metrics=[Within()],
        steps_per_execution=steps,
    )


# Callbacks.


class Warmup(keras.callbacks.Callback):
    """Raises the learning rate step by step in the first epochs."""

    def __init__(self, epochs):
        super().__init__()
        self.epochs = epochs

    def on_train_begin(self, logs=None):
        self.rate = float(keras.backend.get_value(self.model.optimizer.lr))

    def on_epoch_begin(self, epoch, logs=None):
        if epoch <= self.epochs:
            part = (epoch + 1) / (self.epochs + 1)
            keras.backend.set_value(self.model.optimizer.lr, self.rate * part)


class Throughput(keras.callbacks.Callback):
    """Adds the windows a second to the logs of an epoch, for the callbacks that come after."""

    def __init__(self, windows):
        super().__init__()
        self.windows = windows

    def on_epoch_begin(self, epoch, logs=None):
        self.begin = time.time()

    def on_epoch_end(self, epoch, logs=None):
        logs["throughput"] = self.windows / (time.time() - self.begin)


class Record(keras.callbacks.Callback):
    """Keeps what executions and epochs logged, and how large the gate's kernel was."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs, self.norms = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append([batch, float(logs["loss"])])

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append({name: float(value) for name, value in logs.items() if name != "throughput"})
        kernel, _ = self.model.get_layer("gate").get_weights()
        self.norms.append(float(np.linalg.norm(kernel)))


def create_callbacks(args, folder, windows, record):
    best = os.path.join(folder, "best", "weights")
    return [
        Warmup(args.warmup_epochs),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.3, patience=args.patience, min_delta=2e-3, verbose=1),
        keras.callbacks.ModelCheckpoint(
            best, monitor="val_within", mode="max", save_best_only=True, save_weights_only=True, verbose=1
        ),
        keras.callbacks.EarlyStopping("val_loss", patience=4 * args.patience + 4, restore_best_weights=True),
        Throughput(windows),
        keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
        record,
    ]


def train(args, model, folder):
    """Trains a compiled model; what executions and epochs logged."""
    dataset, steps = make_dataset(args)
    validation, validation_steps = make_dataset(args, validation=True)
    record = Record()
    model.fit(
        dataset,
        epochs=args.epochs,
        steps_per_epoch=steps,
        validation_data=validation,
        validation_steps=validation_steps,
        validation_freq=1,
        callbacks=create_callbacks(args, folder, steps * args.micro_batch_size, record),
        verbose=2,
    )
    return record


def use_model(args, model):
    """What a model makes of the validation data: its losses, and the forecasts."""
    inputs, targets, weights = make_windows(args, validation=True)
    size = len(targets) - len(targets) % args.micro_batch_size
    inputs = {name: values[:size] for name, values in inputs.items()}
    results = model.evaluate(
        inputs, targets[:size], args.micro_batch_size, verbose=0, sample_weight=weights[:size], return_dict=True
    )
    forecasts = model.predict(inputs, batch_size=args.micro_batch_size)
    return {"evaluated": {name: float(value) for name, value in results.items()}, "forecasts": forecasts[:, 0].tolist()}


def results_of(args, model, record, folder):
    """What goes into the file of results, but for what the saved model makes of the data."""
    model.load_weights(tf.train.latest_checkpoint(os.path.join(folder, "best")))
    validation, steps = make_dataset(args, validation=True)
    return {
        "batches": record.batches,
        "epochs": record.epochs,
        "norms": record.norms,
        "best": [float(value) for value in model.evaluate(validation, steps=steps, verbose=0)],
        "updates": int(model.optimizer.iterations.numpy()),
    }


def main(args):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()

    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope(), tempfile.TemporaryDirectory() as folder:
        model = create_model(args)
        model.summary()
        model.set_infeed_queue_options(prefetch_depth=2)
        compile_model(args, model, make_dataset(args)[1])
        record = train(args, model, folder)
        path = os.path.join(folder, "model")
        model.save(path, save_format="tf")
        results = use_model(args, keras.models.load_model(path))
        print("validation:", ", ".join(f"{name} {value:.4f}" for name, value in results["evaluated"].items()))
        results.update(results_of(args, model, record, folder))
    options.save(args, results)


if __name__ == "__main__":
    main(parse_arguments())
