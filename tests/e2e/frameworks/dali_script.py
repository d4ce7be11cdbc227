"""Trains with DALI on the CPU: python dali_script.py DIRECTORY EPOCHS. Knows nothing of mlfs.

Prints, for each epoch, the number that each sample begins with, in the order of the batches.
"""

import sys

from nvidia.dali import fn, pipeline_def

directory, epochs = sys.argv[1], int(sys.argv[2])


@pipeline_def(batch_size=16, num_threads=3, device_id=None, prefetch_queue_depth=2)
def pipeline():
    """Files as they are, shuffled anew in each epoch."""
    files, _ = fn.readers.file(file_root=directory, shuffle_after_epoch=True, pad_last_batch=True, name="reader")
    return files


built = pipeline()
built.build()
size = built.epoch_size("reader")
for _ in range(epochs):
    seen = []
    while len(seen) < size:
        (batch,) = built.run()
        seen += [int.from_bytes(batch.at(at)[:4].tobytes(), "little") for at in range(len(batch))]
    print(*seen[:size])
