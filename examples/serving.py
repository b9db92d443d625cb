"""Exports a trained function and a pipeline, and answers requests with them as TensorFlow Serving does.

The emulated IPU trains the function. Plain TensorFlow, without this package, serves it:

    weights --> export_single_step --> SavedModel "line"  --> "2.5" -> a number -> slope * x + intercept -> "y = ..."
    stages  --> export_pipeline ----> SavedModel "stages" --> x -> stage 1 -> stage 2 -> answer
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import tempfile
from pathlib import Path

import tensorflow as tf

import tensorflow_ipu as ipu


def train(strategy):
    """Fits a line to points on y = 3 x - 2 in one program, and returns its two variables."""
    with strategy.scope():
        slope, intercept = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function(jit_compile=True)
    def program(x):
        for _ in tf.range(300):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(slope * x + intercept - (3 * x - 2)))
            for variable, gradient in zip((slope, intercept), tape.gradient(loss, [slope, intercept]), strict=True):
                variable.assign_sub(0.1 * gradient)

    strategy.run(program, (tf.linspace(-1.0, 2.0, 16),))
    return slope, intercept


def main():
    """Trains, exports and serves the function and the pipeline."""
    slope, intercept = train(ipu.IPUStrategy())
    with tempfile.TemporaryDirectory() as folder:
        line, stages = str(Path(folder, "line")), str(Path(folder, "stages"))
        ipu.serving.export_single_step(
            lambda x: slope * x + intercept,
            line,
            iterations=10,
            predict_step_signature=[tf.TensorSpec([], tf.float32, "x")],
            output_names="answer",
            preprocessing_step=tf.strings.to_number,
            preprocessing_step_signature=[tf.TensorSpec([], tf.string)],
            postprocessing_step=lambda y: tf.strings.join(["y = ", tf.strings.as_string(y, precision=2)]),
        )
        ipu.serving.export_pipeline(
            [lambda x: x * slope, lambda x: x + intercept],
            stages,
            iterations=4,
            device_mapping=[0, 1],
            input_dataset=tf.data.Dataset.from_tensors([1.0, 2.0]),
            postprocessing_step=tf.round,
        )
        served = [tf.saved_model.load(path).signatures["serving_default"] for path in (line, stages)]
        print(served[0](input=tf.constant("2.5"))["answer"].numpy().decode())
        print("stages:", served[1](x=tf.constant([1.0, 2.0]))["output_0"].numpy())


if __name__ == "__main__":
    main()
