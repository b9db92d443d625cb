"""What the operations of `message_passing.py` compute on tiles."""

import tensorflow as tf

from tensorflow_ipu.ops import register_user_op_emulation


def gather_or_scatter(data, indices, attributes):
    name, _, _, rows, _ = attributes.split()
    if name == "gather":
        return tf.gather(data, indices, batch_dims=1)
    groups, _, features = data.shape
    places = indices + int(rows) * tf.range(groups)[:, tf.newaxis]
    sums = tf.math.unsorted_segment_sum(data, places, groups * int(rows))
    return tf.reshape(sums, [groups, int(rows), features])


register_user_op_emulation("Build", gather_or_scatter, library="grouped_gather_scatter.so")
