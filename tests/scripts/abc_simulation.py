"""Finds the parameters of an epidemic by approximate Bayesian computation: simulates many, and keeps those like the data.

A loop on the IPUs draws parameters, simulates an epidemic for each, and hands chunks of samples to the host only where one of
them comes near the data. A small network, trained on what was kept, then says which parameters the data would have, as the
distance goes to nothing (a regression adjustment).
"""

import numpy as np
import options
import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow import keras
from tensorflow.python import ipu

tfd = tfp.distributions

# Each with the range of its prior, and what made the data.
PARAMETERS = {
    "contact": (0.1, 1.0, 0.55),  # Infections a day by an infectious person.
    "response": (0.0, 6.0, 3.0),  # How much a confirmed thousandth lowers contacts.
    "onset": (0.1, 0.6, 0.3),  # The part of the incubating that become infectious in a day.
    "detection": (0.05, 0.5, 0.2),  # The part of the infectious that are confirmed in a day.
    "recovery": (0.02, 0.2, 0.08),  # The parts of the confirmed that recover, or die, in a day.
    "fatality": (0.0, 0.04, 0.015),
}
LOW, HIGH, TRUE = np.array(list(PARAMETERS.values()), np.float32).T
OBSERVED = ("confirmed", "recovered", "dead")


def parse_arguments(arguments=None):
    return options.parse(
        arguments,
        population=1e5,
        first_cases=50.0,
        days=20,
        summary_days=4,  # Days that the network sees.
        samples=1024,  # Of an iteration, by replica.
        chunk_size=128,  # Samples that go to the host together.
        tolerance=0.2,  # The distance from the data up to which a sample is kept.
        wanted=64,  # Samples to keep.
        max_iterations=40,  # Of the loop, in each run.
        max_runs=5,
        prior_width=0.25,  # Of the detection, in parts of its range.
        units=16,
        epochs=12,
        batch_size=16,
        learning_rate=0.02,
        replicas=2,
        seed=12,
    )


# The epidemic.


def flow(people, rate, seed):
    """How many of the people move on in a day: around the rate, never more than there are."""
    mean = people * rate
    drawn = tfd.Normal(loc=mean, scale=tf.sqrt(mean + 1e-3)).sample(seed=seed)
    return tf.clip_by_value(drawn, 0.0, people)


def day_of(args, state, rates, seed):
    """The state [people of each compartment] after a day."""
    susceptible, incubating, infectious, confirmed, recovered, dead = state
    infection, stay_in, move = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    recovering, dying = tf.unstack(tf.random.experimental.stateless_split(move, 2))
    contacts = rates["contact"] / (1.0 + rates["response"] * 1000.0 * confirmed / args.population)
    infected = flow(susceptible, contacts * infectious / args.population, infection)
    onset = flow(incubating, rates["onset"], stay_in)
    detected = rates["detection"] * infectious
    cured = flow(confirmed, rates["recovery"], recovering)
    died = tf.minimum(flow(confirmed, rates["fatality"], dying), confirmed - cured)
    return (
        susceptible - infected,
        incubating + infected - onset,
        infectious + onset - detected,
        confirmed + detected - cured - died,
        recovered + cured,
        dead + died,
    )


def simulate(args, parameters, seed):
    """The observed curves [days, 3, samples] of epidemics with these parameters [samples, 6]."""
    rates = dict(zip(PARAMETERS, tf.unstack(parameters, axis=1)))
    nobody = tf.zeros_like(rates["contact"])
    cases = nobody + args.first_cases
    state = (nobody + args.population - 2 * cases, cases, cases, nobody, nobody, nobody)

    def body(day, curves, *state):
        state = day_of(args, state, rates, tf.random.experimental.stateless_fold_in(seed, day))
        return (day + 1, curves.write(day, tf.stack(state[3:])), *state)

    curves = tf.TensorArray(tf.float32, size=args.days, element_shape=[len(OBSERVED), *nobody.shape])
    _, curves, *_ = tf.while_loop(lambda day, *_: day < args.days, body, (0, curves, *state))
    return curves.stack()


def make_data(args):
    """The curves [days, 3] that are to be explained, which somebody has counted with some error."""
    curves = simulate(args, tf.constant(TRUE[np.newaxis]), tf.constant([args.seed, 0]))[..., 0]
    counted = tfd.LogNormal(loc=0.0, scale=0.03).sample(curves.shape, seed=[args.seed, 1])
    return (curves * counted).numpy()


def distance_of(curves, data):
    """How far curves [days, 3, samples] are from the data, as a part of these."""
    scale = tf.reduce_mean(data, axis=0, keepdims=True) + 1.0
    error = (curves - data[..., tf.newaxis]) / scale[..., tf.newaxis]
    return tf.sqrt(tf.reduce_mean(tf.square(error), axis=[0, 1]))


def summary_of(args, curves):
    """What the network sees of curves [days, 3, samples]: logarithms at some of the days, [samples, summary days * 3]."""
    days = np.linspace(args.days // 3, args.days - 1, args.summary_days).astype(int)
    seen = tf.math.log1p(tf.gather(curves, days))
    return tf.transpose(tf.reshape(seen, [args.summary_days * len(OBSERVED), -1]))


# The loop.


def iteration(args, data, number, replica):
    """The samples of one iteration on one replica: parameters, summaries, distances, and weights."""
    seed = tf.stack([args.seed + 100, number * 1024 + replica])
    of_prior, of_days = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    proposal = tfd.Independent(tfd.Uniform(low=LOW, high=HIGH), reinterpreted_batch_ndims=1)
    parameters = proposal.sample(args.samples, seed=of_prior)
    curves = simulate(args, parameters, of_days)
    # The prior of the detection is no uniform one, so samples have weights.
    index = list(PARAMETERS).index("detection")
    prior = tfd.Normal(loc=TRUE[index], scale=args.prior_width * (HIGH - LOW)[index])
    return {
        "parameters": parameters,
        "summary": summary_of(args, curves),
        "distance": distance_of(curves, data),
        "weight": tf.exp(prior.log_prob(parameters[:, index]) - prior.log_prob(prior.mean())),
    }


def run_on_ipus(args, strategy, data):
    """Samples near the data, from all iterations and replicas, in the order in which they came."""
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def condition(number, kept, enqueued):
        return kept < args.wanted

    def body(number, kept, enqueued):
        samples = iteration(args, data, number, ipu.replication_ops.replication_index())
        for start in range(0, args.samples, args.chunk_size):
            chunk = {name: values[start : start + args.chunk_size] for name, values in samples.items()}
            hits = tf.reduce_sum(tf.cast(chunk["distance"] <= args.tolerance, tf.int32))
            # All replicas hand something to the host, or none does.
            hits = ipu.cross_replica_ops.cross_replica_sum(hits)
            enqueue = tf.cond(hits > 0, lambda chunk=chunk: outfeed.enqueue(chunk), tf.no_op)
            with tf.control_dependencies([enqueue]):
                kept += hits
                enqueued += tf.cast(hits > 0, tf.int32)
        return number + 1, kept, enqueued

    @tf.function(experimental_compile=True)
    def loop(number, kept, enqueued):
        return ipu.loops.while_loop(condition, body, [number, kept, enqueued], maximum_iterations=args.max_iterations)

    found = []
    state = [tf.constant(0), tf.constant(0), tf.constant(0)]
    for run in range(args.max_runs):
        state = [strategy.experimental_local_results(value)[0] for value in strategy.run(loop, args=state)]
        number, kept, enqueued = (int(value) for value in state)
        if enqueued:
            found += chunks_of(args, outfeed.dequeue())
        print(f"run {run}: {number} iterations so far, {kept} samples near the data in {enqueued} chunks")
        if kept >= args.wanted:
            break
    return found, number


def chunks_of(args, elements):
    """What was dequeued, as a list of chunks; those of the replicas one after the other."""
    arrays = {name: values.numpy() for name, values in elements.items()}
    places = [(index, replica) for index in range(len(arrays["distance"])) for replica in range(args.replicas)]
    return [{name: values[index][replica] for name, values in arrays.items()} for index, replica in places]


def nearest(args, chunks):
    """The nearest samples of all chunks, the best first, as many as are wanted."""
    samples = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    order = np.argsort(samples["distance"], kind="stable")[: args.wanted]
    return {name: values[order] for name, values in samples.items()}


# The network.


class BestLoss(keras.callbacks.Callback):
    """Remembers the epoch with the lowest loss."""

    def on_train_begin(self, logs=None):
        self.best, self.epoch = np.Inf, None

    def on_epoch_end(self, epoch, logs=None):
        if np.less(logs["loss"], self.best):
            self.best, self.epoch = logs["loss"], epoch


def create_network(args, summary):
    """Summaries to parameters, in parts of the ranges of their priors."""
    normalize = keras.layers.experimental.preprocessing.Rescaling(
        1.0 / summary.std(), offset=-summary.mean() / summary.std()
    )
    return keras.Sequential(
        [
            keras.Input(shape=(summary.shape[1])),
            normalize,
            keras.layers.Dense(args.units, "elu", kernel_initializer=keras.initializers.GlorotNormal(seed=args.seed)),
            keras.layers.Dense(len(PARAMETERS), kernel_initializer=keras.initializers.GlorotNormal(seed=args.seed + 1)),
        ]
    )


def adjust(args, data, samples):
    """Trains the network; its losses, the best epoch, and the parameters that it sees in the data."""
    targets = (samples["parameters"] - LOW) / (HIGH - LOW)
    # Epanechnikov's kernel: what is far counts less.
    weights = samples["weight"] * (1 - np.square(samples["distance"] / (1.01 * samples["distance"].max())))
    network = create_network(args, samples["summary"])
    steps = args.wanted // (args.batch_size * args.replicas)
    rate = keras.optimizers.schedules.PolynomialDecay(args.learning_rate, steps * args.epochs, args.learning_rate / 10)
    network.compile(keras.optimizers.Adam(rate), keras.losses.Huber(0.3), steps_per_execution=steps)
    if args.replicas > 1:
        network.set_replication_options(replicated_metric_reduction_method="MEAN")
    best = BestLoss()
    dataset = tf.data.Dataset.from_tensor_slices(
        (samples["summary"], targets.astype(np.float32), weights.astype(np.float32))
    )
    dataset = dataset.shuffle(args.wanted, seed=args.seed).batch(args.batch_size, drop_remainder=True)
    history = network.fit(dataset, epochs=args.epochs, callbacks=[best], verbose=0)
    seen = summary_of(args, tf.constant(data[..., np.newaxis])).numpy()
    estimate = LOW + (HIGH - LOW) * network.predict(np.repeat(seen, args.replicas, axis=0), batch_size=1)[0]
    return {"losses": history.history["loss"], "best": [best.best, best.epoch], "estimate": estimate.tolist()}


def results_of(args, data, samples, iterations):
    """What goes into the file."""
    return {
        "iterations": iterations,
        "distances": samples["distance"].tolist(),
        "parameters": samples["parameters"].tolist(),
        "weights": samples["weight"].tolist(),
        **adjust(args, data, samples),
    }


def main(args):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = args.replicas
    config.configure_ipu_system()

    data = make_data(args)
    strategy = ipu.ipu_strategy.IPUStrategyV1()
    with strategy.scope():
        chunks, iterations = run_on_ipus(args, strategy, data)
        samples = nearest(args, chunks)
        results = results_of(args, data, samples, iterations)
    mean = np.average(samples["parameters"], axis=0, weights=samples["weight"])
    for name, true, kept, adjusted in zip(PARAMETERS, TRUE, mean, results["estimate"]):
        print(f"{name:10} is {true:.3f}, of samples {kept:.3f}, adjusted {adjusted:.3f}")
    options.save(args, results)


if __name__ == "__main__":
    main(parse_arguments())
