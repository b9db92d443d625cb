"""Variables in graphs that operations and optimizers create, and that the user does not see."""

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops.gradient_capture import GradientCaptureTape, capture_upstream_gradients
from tensorflow_ipu.ops.internal_ops import fifo
from tensorflow_ipu.optimizers import GradientAccumulationOptimizerV2


def test_a_graph_initializes_and_saves_the_variables_of_the_user_alone(configure):
    # Without `global_variables_initializer`, a delay line, captured gradients and accumulators once could not be read.
    configure(1)
    with tf.Graph().as_default():
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            weight = tf.compat.v1.get_variable("weight", initializer=3.0, use_resource=True)
            optimizer = GradientAccumulationOptimizerV2(tf.compat.v1.train.GradientDescentOptimizer(0.1), 2)
            outfeed = ipu.IPUOutfeedQueue()

            def step(i):
                outfeed.enqueue(fifo(i, 2))
                return i + 1, optimizer.apply_gradients([(tf.constant(1.0), weight)])

            def captured():
                with GradientCaptureTape() as tape:
                    y = tf.while_loop(
                        lambda i, _: i < 3,
                        lambda i, y: (i + 1, capture_upstream_gradients(y * weight)),
                        (0, 1.0),
                        maximum_iterations=3,
                    )[1]
                tape.gradient(y, weight)
                return tape.captured_gradients[""][0]

            [gradient] = ipu.compiler.compile(captured)
            with tf.control_dependencies([gradient]):
                run = ipu.compiler.compile(lambda: ipu.loops.repeat(4, step, [0]))
        dequeued = outfeed.dequeue()
        assert tf.compat.v1.global_variables() == [weight]
        for _ in range(2):  # Each session has separate values.
            with tf.compat.v1.Session() as session:
                session.run(weight.initializer)
                assert session.run([gradient, run]) == [9.0, [4]]
                assert session.run(dequeued).tolist() == [0, 0, 0, 1]
                session.run(run)
                assert session.run(dequeued).tolist() == [2, 3, 0, 1]
                assert session.run([weight, optimizer.accumulators]) == [pytest.approx(2.2), [0.0]]
