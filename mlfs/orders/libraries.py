"""The samplers of scripts' own loops and of libraries but torch, as compositions.

In: a job's fields, as each function names them. Out: each rank's dataset indices. Made by `mlfs.orders.order`;
`mlfs.orders.composed` does the work. Sources beside those named below: `mlfs.orders.generators`;
datasets/arrow_dataset.py (shuffle, shard; datasets 5.2).

    numpy          rng = default_rng(seed) (legacy: RandomState(seed)); rng.permutation(n) each epoch
    python-random  random.seed(seed); random.shuffle(indices) each epoch, in place
    hf-datasets    dataset.shuffle(seed=seed); the same order each epoch

reseed: the generator is made anew each epoch, from seed + epoch. in_place: each epoch shuffles what the epoch before
left, and not the sorted indices. Ranks of numpy and Python scripts take indices[rank::world_size], nothing padded; with
drop_last all take equally many. HF datasets are cut into contiguous shards (split_dataset_by_node), the first ones
longer by one.

A shuffle of tf.data draws new seeds for each pass that is begun, and Keras' fit begins passes that it does not read:
passes_before and passes_between say how many (docs/orders.md; keras/src/trainers/epoch_iterator.py,
EpochIterator._enumerate_iterator, and keras/src/trainers/trainer.py, _symbolic_build; Keras 3.15).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.composed import Composition, Parts, pass_number
from mlfs.orders.counters import op_seeds, pass_seeds, shuffle_pass
from mlfs.orders.deal import in_turn
from mlfs.orders.draws import Kind, Values
from mlfs.orders.generators import BY_EPOCH, GOES_ON, LIBRARIES, RESEEDED, SAME, Seeding, check_seed
from mlfs.orders.order import EPOCHS_KEPT, Indices, KnowsFiles, Resolve

if TYPE_CHECKING:
    from mlfs.job import JobSpec


_HF_SHARDS_AT_ONCE: Final = 10
_LOOPS: Final = {
    "numpy": Parts("numpy", GOES_ON, "permutation"),
    "python-random": Parts("python", GOES_ON, "shuffle"),
    "hf-datasets": Parts("numpy", SAME, "permutation", "contiguous"),
}


def loop_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """numpy.random.Generator, or with "legacy" the older RandomState, which numpy.random.seed sets as well; Python's
    random module, whose seed may be any, as it takes the absolute value; datasets.Dataset.shuffle(seed=...)."""
    parts = _LOOPS[spec.sampler]._replace(drop_last=spec.drop_last)
    if spec.legacy:
        parts = parts._replace(generator="numpy-legacy")
    if spec.reseed:
        parts = parts._replace(seeding=RESEEDED)
    if spec.in_place is not None:
        parts = parts._replace(draw="shuffle" if spec.in_place else "permutation")
    return Composition(parts, spec, n_samples)


def hf_streaming_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """The shards of a datasets.IterableDataset: datasets/iterable_dataset.py (datasets 5.2).

    The list is shuffled by `shuffle(seed)`, and that again by the number of the epoch, from the second one on, if the
    script calls set_epoch. split_dataset_by_node takes every world_size-th shard if that comes out even; else each rank
    reads all shards, for every world_size-th example. A worker takes every num_workers-th of these. After a shuffle it
    reads from several pieces of its list at a time (max_buffer_input_shards), which are of one length here.
    """
    if spec.seed < 0:
        raise JobError(f'job field "seed" is {spec.seed}, must be 0 or more', "numpy takes no other", "seed")
    workers, at_once = spec.num_workers or 1, (spec.shards_at_once or _HF_SHARDS_AT_ONCE) if spec.shuffle else 1

    def shuffled(seed: int) -> Indices:
        return np.asarray(LIBRARIES["numpy"].make(seed).permutation(n_samples), dtype=np.int64)

    @lru_cache(maxsize=EPOCHS_KEPT)
    def listed(epoch: int) -> Indices:
        shards = shuffled(spec.seed) if spec.shuffle else np.arange(n_samples, dtype=np.int64)
        return shards[shuffled(epoch)] if epoch and spec.set_epoch else shards

    def names(epoch: int, positions: Values) -> Values:
        mine = [listed(epoch)[positions][worker::workers] for worker in range(workers)]
        pieces = [np.array_split(shards, max(1, min(len(shards), at_once))) for shards in mine]
        return in_turn([in_turn(of_worker, 1) for of_worker in pieces], 1)

    dealing = "alike" if n_samples % spec.world_size else "strided"
    return Composition(Parts("numpy", SAME, "none", dealing, names=names), spec, n_samples)


def sequential_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """The data set in index order: torch's SequentialSampler, or DistributedSampler(shuffle=False) with several ranks.

    contiguous: rank r reads the r-th piece of n / world_size samples, rounded up; the last one has what is left (or,
    with drop_last, each has n / world_size rounded down). So does DLIO with PyTorch's loader
    (data_loader/torch_data_loader.py, dlio_sampler; argonne-lcf/dlio_benchmark 2025), whatever its file_shuffle and
    sample_shuffle say.
    """
    dealing = "pieces" if spec.contiguous else "padded"
    return Composition(Parts("torch", GOES_ON, "none", dealing, drop_last=spec.drop_last), spec, n_samples)


# -- libraries with readers of their own


_PASSES: Final = Seeding("fold-in")


def _only_one(spec: JobSpec, what: str) -> None:
    if spec.world_size > 1:
        hint = "every process reads everything: register world_size 1"
        raise JobError(f"{what} shards nothing", hint, "world_size")


def _enough(spec: JobSpec, n_samples: int, hint: str) -> None:
    if spec.world_size > n_samples:
        raise JobError(f"{n_samples} samples cannot be {spec.world_size} shards", hint, "world_size")


# -- DALI's readers.file, and what shares its loader; readers.tfrecord and readers.webdataset, over rows:
# dali/operators/reader/loader/file_label_loader.h, indexed_file_loader.h, webdataset_loader.cc (DALI 2.4)
#
# The reader opens files in the order of its list; what it hands out is drawn from a buffer behind that (initial_fill,
# seed), which the file system never sees. So the user's seed changes nothing, nor does pad_last_batch, which repeats
# samples in memory.

DALI_SEED: Final = 524287  # kDaliDataloaderSeed
_WIDE_SEED_SINCE: Final = (2, 2)


def dali_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """The reader's list, and the shard of it that a rank reads: world_size is num_shards, a rank its shard_id.

    - shuffle (random_shuffle): one shuffle of the list, by a seed that is built in, at the start.
    - shuffle_after_epoch: the list is shuffled before each epoch, the first one too, on top of the shuffles before.
      DALI up to 2.1 seeds with a constant plus the epoch, later ones with the epoch above the constant. (A pipeline
      built with enable_checkpointing begins each epoch anew from the unshuffled list: not predicted.)
      Readers of records shuffle their files, as they were given, and read each from front to back. list_seed is
      shuffle_after_epoch_seed.
    - A reader goes on to the next shard after each epoch, unless stick_to_shard or shuffle_after_epoch is set.
    """
    for field, named, hint in (
        ("shuffle", "shuffle_after_epoch", '"shuffle" is random_shuffle; DALI takes one of the two'),
        ("stick_to_shard", "stick_to_shard", "DALI takes one of the two; shuffle_after_epoch sticks by itself"),
    ):
        if getattr(spec, field) and spec.shuffle_after_epoch:
            raise JobError(f"{field} and shuffle_after_epoch cannot both be true", hint, named)
    if spec.list_seed is not None and not spec.shuffle_after_epoch:
        raise JobError("list_seed changes nothing without shuffle_after_epoch", "leave it out", "list_seed")
    of_rows = spec.layout in ("tfrecord", "tar")
    if spec.shuffle and of_rows:
        hint = "readers of records shuffle in memory, and read in the files' own order"
        raise JobError(f'DALI does not shuffle a list for the layout "{spec.layout}"', hint, "shuffle")
    _enough(spec, n_samples, "DALI refuses to read more shards than there are samples")
    version = tuple(int(part) for part in re.findall(r"\d+", spec.dali_version or "")[:2])
    is_wide = not version or version >= _WIDE_SEED_SINCE
    step = 1 << 32 if is_wide else 1  # the reader counts epochs from 1
    parts = Parts("cpp", SAME, "permutation" if spec.shuffle else "none", "shards", seed=DALI_SEED)
    first = (DALI_SEED if spec.list_seed is None else spec.list_seed) + step
    if spec.shuffle_after_epoch and of_rows and isinstance(resolve, KnowsFiles):
        begins = np.flatnonzero(np.diff(resolve.files(), prepend=-2))
        files = np.split(np.arange(n_samples, dtype=np.int64), begins[1:])

        @lru_cache(maxsize=EPOCHS_KEPT)
        def listed(epoch: int) -> Indices:
            order = LIBRARIES["cpp-64"].make(first + epoch * step).permutation(len(files))
            return np.concatenate([files[at] for at in order])

        parts = parts._replace(names=lambda epoch, positions: listed(epoch)[positions])
    elif spec.shuffle_after_epoch:
        each = Seeding("linear", epoch=step, constant=first)
        parts = parts._replace(generator="cpp-64" if is_wide else "cpp", seeding=each, draw="shuffle")
    return Composition(parts._replace(turns=not (spec.stick_to_shard or spec.shuffle_after_epoch)), spec, n_samples)


# -- Grain's IndexSampler under a grain.python.DataLoader: grain/_src/python/samplers.py, core/sharding.py (0.2.18)


class GrainOrder(Composition):
    """Contiguous shards, each shuffled in itself by seed + epoch; world_size is shard_count, a rank its shard_index.

    Without drop_last (drop_remainder) the first shards are one longer than the others. The sampler ends after
    num_epochs * num_records records of the whole world, dealt to the shards in turn: a longer shard then misses the end
    of its last epoch, and a shorter one begins an epoch more. Such a beginning counts as the end of the last epoch
    here. The worker processes of a DataLoader take single samples in turn, not batches.

    Raises:
        JobError: a seed that Grain refuses, or shards without samples.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        _enough(spec, n_samples, "Grain cannot shuffle a shard without samples")
        draw: Kind = "permutation" if spec.shuffle else "none"
        parts = Parts("grain", RESEEDED, draw, "contiguous", shard_first=True, drop_last=spec.drop_last)
        super().__init__(parts if spec.shuffle else parts._replace(seed=0), spec, n_samples)
        self._last, (self._size, longer) = spec.epochs - 1, divmod(n_samples, spec.world_size)
        self._longer = 0 if spec.drop_last else longer

    def stream_length(self, epoch: int) -> int:
        return max(self._length(epoch, rank) for rank in (0, self._longer))

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        length, stream = self._length(epoch, rank), super().rank_stream(epoch, rank)
        while len(stream) < length:
            epoch += 1
            stream = np.append(stream, super().rank_stream(epoch, rank))
        return stream[:length]

    def _length(self, epoch: int, rank: int) -> int:
        """Samples that the rank reads in an epoch, in the last one with what it reads of one more."""
        size = self._size + (rank < self._longer)
        if epoch < self._last or not self._longer:
            return size
        return -(-((self._last + 1) * self._n - rank) // self._spec.world_size) - self._last * size


# -- a tf.data pipeline that lists, shards and shuffles file names before it reads files: python/data/ops/dataset_ops.py
# (list_files, shard; TensorFlow 2.21), `mlfs.orders.counters`


def tf_data_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """list_files(pattern, seed=list_seed).shard(world_size, rank).shuffle(buffer_size, seed, reshuffle_each_iteration).

    Names come as the layout has them when list_seed is left out, and shard() stands behind the shuffle with shard_first
    false. The steps that follow (map, interleave, batch, prefetch) leave the order alone. An epoch is one pass over it:
    repeat() after the shuffle makes epochs like these; before the shuffle it mixes them, which is not predicted.
    """
    is_given = spec.global_seed is None or "seed" in spec.model_fields_set
    own = spec.op_seed if spec.op_seed is not None else spec.seed if is_given else None

    @lru_cache(maxsize=EPOCHS_KEPT)
    def listed(epoch: int) -> Indices:
        """The names as list_files shuffles them, with a buffer for all, anew in each pass."""
        # A shuffle asks for names with the first that it hands out: a pass that is begun and not read lists nothing.
        begun = (spec.passes_before or 0) + epoch if spec.shuffle else pass_number(spec, epoch)
        seeds = pass_seeds(op_seeds(spec.list_seed, spec.global_seed), begun)
        return shuffle_pass(n_samples, n_samples, seeds).astype(np.int64)

    parts = Parts(
        "tensorflow", SAME if spec.reshuffle_each_iteration is False else _PASSES, "buffer" if spec.shuffle else "none",
        shard_first=spec.shard_first is not False, seed=op_seeds(own, spec.global_seed),
        names=None if spec.list_seed is None else lambda epoch, positions: listed(epoch)[positions],
    )  # fmt: skip
    size = spec.buffer_size or max(1, n_samples)
    return Composition(parts, spec.model_copy(update={"buffer_size": size}), n_samples)


# -- keras.utils.image_dataset_from_directory(..., seed=..., format="tf"): keras/src/utils/dataset_utils.py
# (index_directory, get_training_or_validation_split), image_dataset_utils.py (Keras 3.15)

_BUFFERED_BATCHES: Final = 8


def keras_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """Names are shuffled once by numpy, cut into training and validation part, and the part is shuffled in each pass.

    tf.data shuffles with a buffer of eight batches. Both parts of subset="both" are jobs of their own here; in that
    case alone Keras does not shuffle the validation part again (give "shuffle_validation": false).

    Raises:
        JobError: a seed that numpy refuses, a split without a subset or the other way round, an empty part, ranks.
    """
    _only_one(spec, "image_dataset_from_directory")
    if spec.shuffle:
        check_seed("numpy-legacy", spec.seed, "seed", "numpy")
    if (spec.validation_split is None) != (spec.subset is None):
        raise JobError("validation_split and subset go together", "give both or none", "subset")
    names = np.arange(n_samples, dtype=np.int64)
    if spec.shuffle:
        names = LIBRARIES["numpy-legacy"].make(spec.seed).permutation(n_samples).astype(np.int64)
    validation = int((spec.validation_split or 0) * n_samples)
    if spec.subset == "training":
        names = names[:-validation]  # nothing, for a split so small that no sample is for validation: as Keras
    elif spec.subset == "validation":
        names = names[-validation:]
    if not len(names):
        raise JobError(f"the {spec.subset} part of {n_samples} samples is empty", "", "validation_split")
    draw: Kind = "buffer" if spec.shuffle and spec.shuffle_validation is not False else "none"
    seeds = op_seeds(spec.seed, spec.global_seed)
    parts = Parts("tensorflow", _PASSES, draw, "alike", seed=seeds, names=lambda epoch, positions: names[positions])
    size = _BUFFERED_BATCHES * spec.batch_size
    return Composition(parts, spec.model_copy(update={"buffer_size": size}), len(names))


def py_dataset_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """A keras.utils.PyDataset (keras.utils.Sequence) that model.fit shuffles.

    Source: keras/src/trainers/data_adapters/py_dataset_adapter.py (PyDatasetAdapter, OrderedEnqueuer; Keras 3.15). The
    data set hands out whole batches: number b has the samples b * batch_size and those that follow, by its own
    `__getitem__`. fit(shuffle=True), the default, has Python's random.shuffle reorder the numbers of the batches before
    each epoch, however many workers there are, threads or processes. The seed is that of random.seed, or of
    keras.utils.set_random_seed; each layer with random weights that is made after it draws a word or two
    (words_before). evaluate, predict and validation_data are in order: "shuffle": false. A data set that shuffles its
    samples itself, in `on_epoch_end` mostly, is another order. The data set knows no ranks.
    """
    _only_one(spec, "a PyDataset")
    parts = Parts("python", GOES_ON, "blocks" if spec.shuffle else "none", words_before=spec.words_before or 0)
    return Composition(parts, spec.model_copy(update={"block_size": spec.batch_size}), n_samples)


def paddle_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """paddle.io.DistributedBatchSampler: paddle/io/dataloader/batch_sampler.py (paddlepaddle 3.3).

    0 .. n-1, padded from its own start to a multiple of world_size, shuffled with RandomState(epoch) (the epoch goes on
    by itself; there is no seed), batches dealt as cards are, the rest of the last round in equal pieces. drop_last
    leaves that rest out.
    """
    padded = -(-n_samples // spec.world_size) * spec.world_size
    draw: Kind = "permutation" if spec.shuffle else "none"
    parts = Parts("numpy-legacy", BY_EPOCH, draw, "batches-and-pieces", drop_last=spec.drop_last, seed=0)
    names = parts._replace(names=lambda epoch, positions: positions % max(1, n_samples))
    return Composition(names, spec, padded)
