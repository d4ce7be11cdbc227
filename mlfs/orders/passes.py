"""Says which pass over a data set an epoch reads: a loop may begin passes that it does not read.

In: a job's passes_before and passes_between. Out: the number of a pass. Called by the samplers of tf.data and Keras,
whose shuffles draw new seeds for each pass that is begun, read or not.
Source: keras/src/trainers/epoch_iterator.py (EpochIterator._enumerate_iterator; Keras 3.15). On the TensorFlow backend
`model.fit` begins a pass when an epoch begins, and another one when the epoch has taken its last batch; so do
`evaluate` and `predict`. The second one is thrown away when the next epoch begins. With steps_per_epoch a pass goes on
over the epochs, and none is thrown away. On the other backends a pass begins with its first batch, and one batch is
read before the first epoch, to build the model (keras/src/trainers/trainer.py, _symbolic_build).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlfs.job import JobSpec


def pass_number(spec: JobSpec, epoch: int) -> int:
    """The number, from 0, of the pass that the epoch reads."""
    return (spec.passes_before or 0) + epoch * (1 + (spec.passes_between or 0))
