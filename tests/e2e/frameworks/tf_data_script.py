"""Trains with tf.data: python tf_data_script.py DIRECTORY SEED EPOCHS. Knows nothing of mlfs.

Files are read by several threads; prints, for each epoch, the number that each sample begins with, in read order.
"""

import os
import sys

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import tensorflow as tf

directory, seed, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def number(path: tf.Tensor) -> tf.Tensor:
    """The first bytes of a file."""
    return tf.io.decode_raw(tf.strings.substr(tf.io.read_file(path), 0, 4), tf.int32)[0]


names = tf.data.Dataset.list_files(f"{directory}/*/*.jpg", shuffle=False)
dataset = names.shuffle(500, seed=seed).map(number, num_parallel_calls=4, deterministic=True)
dataset = dataset.batch(32).prefetch(2)
for _ in range(epochs):
    print(*(int(value) for batch in dataset for value in batch))
