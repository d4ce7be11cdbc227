"""The specification of a registered training run: what a user tells mlfs so that it can compute the order of reads.

In: the fields of one JSON object (`mlfs.job.parse` reads it). Out: a checked, frozen `JobSpec`. Used by the command
line, the daemon's control files, the simulator and everything in `mlfs.orders`.

A field's `description` is at once its documentation (in the schema), the help of its flag (`mlfs register --help`) and
the "must be ..." of its error message; its group is its heading in both. A field that not every sampler reads is None
when not given: the sampler's own default holds, as its module's docstring says.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mlfs.errors import JobError
from mlfs.job.names import built_in, layout_fields, layout_names, readers_of, sampler_names
from mlfs.job.presets import PRESETS
from mlfs.job.ranks import Nodes, Ranks
from mlfs.job.refusals import is_path, nearest, one_of, refuse, show

VERSION: Final = 1
# Each rank takes an entry in a few lists, and a mistyped world size should not fill the memory.
MAX_WORLD_SIZE: Final = 1_000_000
MAX_EPOCHS: Final = 1_000_000
# Words of a generator are skipped one by one, which takes some seconds a billion.
MAX_WORDS: Final = 10**10
# No data set has more samples, and no larger number fits into an array.
_MOST_COUNTED: Final = 1 << 40
Counted = Annotated[int, Field(le=_MOST_COUNTED)]
_One = Annotated[int, Field(ge=1, le=MAX_WORLD_SIZE)]
_Some = Annotated[int, Field(ge=0, le=_MOST_COUNTED)]
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_PLACEHOLDERS = ("{epoch}", "{rank}")


class LeftOff(NamedTuple):
    """The place where a run with litdata left off, as its state says it.

    Attributes:
        epoch: from 0. done: samples of it that all ranks had read when the rest was last dealt anew, or 0. yielded:
            samples that each rank has read since.
        world_size, num_workers, group_batch, physical_nodes: those of the run that began the epoch.
    """

    epoch: _Some
    done: _Some
    yielded: _Some
    world_size: _One
    num_workers: _One
    group_batch: _One
    physical_nodes: _One


def are_fractions(lengths: Sequence[float]) -> bool:
    """Whether torch's random_split takes these lengths for fractions of the whole."""
    return math.isclose(sum(lengths), 1) and sum(lengths) <= 1


def _group(title: str) -> dict[str, Any]:
    return {"group": title}


_JOB = _group("the job")
_DATA = _group("the data set")
_RESUME = _group("resuming")
_SERVED = _group("an order that mlfs serves")
_LOADER = _group("the DataLoader")
_SAMPLER = _group("the sampler")
_COMPOSED = _group("an order put together")
_TORCH = _group("generators")
_HF = _group("accelerate and HF Trainer")
_AUGMENT = _group("repeated augmentation")
_DALI = _group("DALI")
_TF = _group("tf.data and Keras")
_FLAG = "true or false"
_COUNT = "a whole number, 0 or more"
_WORDS = f"a whole number, 0 to {MAX_WORDS}"
_SEED = "a whole number of any size and sign"


class JobSpec(BaseModel):
    """One registered training run; see docs/orders.md for what each sampler makes of the fields.

    Fields stand in the order in which they are checked: a field may look at those above it.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True, title="mlfs job")

    version: Literal[1] = Field(1, description="1, the version of this language", json_schema_extra=_JOB)
    preset: str | None = Field(
        None, description=f"{one_of(PRESETS)}: sets what is not given as that framework does", json_schema_extra=_JOB
    )
    name: str = Field(
        "train",
        description="1 to 64 letters, digits, '.', '_' or '-'",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        json_schema_extra=_JOB,
    )
    sampler: str = Field("torch-distributed", description="the name of a sampler", json_schema_extra=_JOB)
    seed: int = Field(0, description=_SEED, json_schema_extra=_JOB)
    epochs: int = Field(
        description=f"a whole number, 1 to {MAX_EPOCHS}: passes over the data, counted from 0, that the script makes",
        ge=1,
        le=MAX_EPOCHS,
        json_schema_extra=_JOB,
    )
    batch_size: Counted = Field(
        1, description="a whole number, 1 or more: samples a rank reads in one step", ge=1, json_schema_extra=_JOB
    )
    world_size: int = Field(
        1,
        description=f"a whole number, 1 to {MAX_WORLD_SIZE}: training processes (for DALI and Grain: shards)",
        ge=1,
        le=MAX_WORLD_SIZE,
        json_schema_extra=_JOB,
    )
    ranks: Ranks = Field(
        None,
        description='the ranks that read through this mount, as [0, 1] or "0-3,6"; all by default',
        validate_default=True,
        json_schema_extra=_JOB,
    )

    root: str = Field(
        "",
        description='a sub-directory of the source (for rows also a file), relative and without ".."; "" is the whole'
        " source",
        json_schema_extra=_DATA,
    )
    layout: str = Field("imagefolder", description=one_of(layout_names()), json_schema_extra=_DATA)
    extensions: tuple[str, ...] | None = Field(
        None,
        description='null for the layout\'s own, or a list of file name endings, such as ["jpg", "png"]',
        json_schema_extra=_DATA,
    )
    manifest_file: str | None = Field(
        None,
        description="the absolute path of a file with one sample a line, its files between tabs (manifest layout), or"
        " its file, offset and length (ranges layout), or of the ...document_index.npy in a GPTDataset's cache"
        " (megatron-gpt layout)",
        json_schema_extra=_DATA,
    )
    row_bytes: Counted | None = Field(
        None, description="a whole number, 1 or more: bytes of a row (raw layout)", ge=1, json_schema_extra=_DATA
    )
    header_bytes: Counted | None = Field(
        None, description=f"{_COUNT}: bytes before a file's first row (raw layout)", ge=0, json_schema_extra=_DATA
    )
    sequence_length: Counted | None = Field(
        None,
        description="a whole number, 1 or more: tokens of a sample (megatron-gpt layout: --seq-length; nanogpt layout:"
        " block_size)",
        ge=1,
        json_schema_extra=_DATA,
    )
    eval_interval: Counted | None = Field(
        None,
        description="a whole number, 1 or more: steps between two evaluations by rank 0 (nanogpt layout)",
        ge=1,
        json_schema_extra=_DATA,
    )
    eval_batches: Counted | None = Field(
        None,
        description=f"{_COUNT}: batches of an evaluation (nanogpt layout: eval_iters)",
        ge=0,
        json_schema_extra=_DATA,
    )
    batches_a_step: Counted | None = Field(
        None,
        description="a whole number, 1 or more: batches that a process reads in a step (nanogpt layout: its gradient"
        " accumulation)",
        ge=1,
        json_schema_extra=_DATA,
    )
    document_split: tuple[int | float, ...] | None = Field(
        None,
        description="null for all documents, or Megatron's --split, such as 969,30,1, whose first part is read",
        json_schema_extra=_DATA,
    )
    columns: tuple[str, ...] | None = Field(
        None,
        description='null, or a list of names, such as ["image", "mask"]: the data sets or columns that a sample has'
        " (hdf5, parquet and arrow layouts)",
        json_schema_extra=_DATA,
    )
    pattern: str | None = Field(
        None,
        description='a pattern of paths relative to root, "*/*.jpg" for files in class directories, or with braces'
        ' such as "train-{0000..0146}.tar" (braces layout)',
        pattern="[^/]",
        json_schema_extra=_DATA,
    )
    split: tuple[int | float, ...] | None = Field(
        None,
        description="the lengths given to random_split: whole numbers, or fractions of 1 such as [0.8, 0.2]",
        json_schema_extra=_DATA,
    )
    part: Counted | None = Field(
        None, description="a whole number, 0 or more: which part of the split is read", ge=0, json_schema_extra=_DATA
    )
    split_seed: int | None = Field(
        None,
        description=f"{_SEED}: of random_split's generator; without it the data set is cut as it stands",
        json_schema_extra=_DATA,
    )
    split_by: Literal["torch", "numpy", "python", "default_rng"] | None = Field(
        None,
        description='"torch" (random_split), "numpy" (np.random.shuffle, sklearn), "python" (random.shuffle) or'
        ' "default_rng" (numpy\'s, HF datasets)',
        json_schema_extra=_DATA,
    )
    without_part: Counted | None = Field(
        None,
        description="a whole number, 0 or more: all parts of the split are read but this one",
        ge=0,
        json_schema_extra=_DATA,
    )
    split_rounding: Literal["spread", "down"] | None = Field(
        None,
        description='"spread" (as random_split and sklearn do) or "down" (all parts but the last, as int(0.2 * n))',
        json_schema_extra=_DATA,
    )
    split_order: Literal["drawn", "sorted"] | None = Field(
        None,
        description='"drawn" or "sorted" (as KFold, or df.drop of what was sampled): the order of a part',
        json_schema_extra=_DATA,
    )
    stratified: bool | None = Field(
        None,
        description=f"{_FLAG}: each directory is split alike: sklearn's train_test_split(stratify=labels),"
        " StratifiedKFold",
        json_schema_extra=_DATA,
    )
    subset_file: str | None = Field(
        None,
        description="the absolute path of a file with the dataset indices that are read, one a line, or of a .npy",
        json_schema_extra=_DATA,
    )
    cached_samples: Counted | None = Field(
        None,
        description=f"{_COUNT}: so many first samples are kept in memory by the script, and never read while it trains",
        ge=0,
        json_schema_extra=_DATA,
    )

    start_epoch: int = Field(
        0, description="a whole number, 0 or more, less than epochs", ge=0, json_schema_extra=_RESUME
    )
    start_step: Counted = Field(
        0,
        description="a whole number, 0 or more: steps of the first epoch already done",
        ge=0,
        json_schema_extra=_RESUME,
    )

    left_off: LeftOff | None = Field(
        None,
        description="where a run with litdata left off, as it is filled in from the state that resume names: "
        + ", ".join(LeftOff._fields),
        json_schema_extra=_SAMPLER,
    )

    serve: Literal["locality", "opportunistic"] | None = Field(
        None,
        description='"locality" or "opportunistic": the script reads an order of mlfs in place of its sampler\'s own;'
        " needs batch_size",
        json_schema_extra=_SERVED,
    )
    level: float | None = Field(
        None,
        description="a number, 0 to 1: the randomness that an opportunistic order has at least (1: a uniform shuffle)",
        ge=0,
        le=1,
        allow_inf_nan=False,
        json_schema_extra=_SERVED,
    )
    nodes: Nodes = Field(
        None,
        description="the nodes that a served order is dealt to, as the mount fills them in when the job is registered",
        json_schema_extra=_SERVED,
    )

    num_workers: Counted | None = Field(
        None, description=f"{_COUNT}: worker processes of a DataLoader", ge=0, json_schema_extra=_LOADER
    )
    prefetch_factor: Counted | None = Field(
        None, description="a whole number, 1 or more: batches ahead of each worker", ge=1, json_schema_extra=_LOADER
    )
    persistent_workers: bool | None = Field(
        None, description=f"{_FLAG}: workers live on between epochs", json_schema_extra=_LOADER
    )

    loader_drop_last: bool = Field(
        False, description=f"{_FLAG}: the loader leaves out a last batch that is not full", json_schema_extra=_LOADER
    )

    shuffle: bool = Field(True, description=f"{_FLAG}: the sampler's or reader's shuffle", json_schema_extra=_SAMPLER)
    drop_last: bool = Field(
        False, description="true or false: the sampler's drop_last, not the loader's", json_schema_extra=_SAMPLER
    )
    set_epoch: bool = Field(
        True,
        description=f"{_FLAG}: the script calls set_epoch; without, every epoch has the first one's order",
        json_schema_extra=_SAMPLER,
    )
    contiguous: bool | None = Field(
        None,
        description=f"{_FLAG}: each rank reads a piece of the data set, and not every so many-th sample",
        json_schema_extra=_SAMPLER,
    )
    shards_at_once: Counted | None = Field(
        None,
        description="a whole number, 1 or more: shards that a worker reads at a time (max_buffer_input_shards; 10)",
        ge=1,
        json_schema_extra=_SAMPLER,
    )
    order_file: str | None = Field(
        None,
        description='the absolute path of a file, in which "{epoch}" and "{rank}" are replaced',
        json_schema_extra=_SAMPLER,
    )
    replacement: bool | None = Field(None, description=_FLAG, json_schema_extra=_SAMPLER)
    num_samples: Counted | None = Field(
        None,
        description="a whole number, 1 or more: samples drawn an epoch; the data set's length by default",
        ge=1,
        json_schema_extra=_SAMPLER,
    )
    weights_file: str | None = Field(
        None, description="the absolute path of a file with one weight a line, or of a .npy", json_schema_extra=_SAMPLER
    )
    reseed: bool | None = Field(
        None,
        description=f"{_FLAG}: the generator is made anew each epoch, from seed + epoch",
        json_schema_extra=_SAMPLER,
    )
    in_place: bool | None = Field(
        None,
        description=f"{_FLAG}: each epoch shuffles what the epoch before left, and not the sorted indices",
        json_schema_extra=_SAMPLER,
    )
    legacy: bool | None = Field(
        None,
        description=f"{_FLAG}: numpy's RandomState (np.random.seed) and not default_rng",
        json_schema_extra=_SAMPLER,
    )

    shuffle_algo: Literal["py1e", "py1s", "py2s", "py1br", "naive"] | None = Field(
        None,
        description='"py1e", "py1s", "py2s", "py1br" or "naive": how MosaicML\'s StreamingDataset shuffles',
        json_schema_extra=_SAMPLER,
    )
    canonical_nodes: Counted | None = Field(
        None,
        description="a whole number, 1 or more: its num_canonical_nodes; as many as nodes (py1s, py2s: 64 times)",
        ge=1,
        json_schema_extra=_SAMPLER,
    )
    physical_nodes: Counted | None = Field(
        None,
        description="a whole number, 1 or more: the nodes that its ranks run on; 1 by default",
        ge=1,
        json_schema_extra=_SAMPLER,
    )

    draw: (
        Literal[
            "permutation", "shuffle", "sample", "with-replacement", "weighted", "repeat-factors", "per-group", "clips",
            "sorted-sample", "buffer", "filling-buffer", "blocks", "none",
        ]
        | None
    ) = Field(
        None,
        description='"permutation" (of the sorted indices), "shuffle" (of what the epoch before left, in place),'
        ' "sample" (the library\'s own, without replacement), "sorted-sample" (the same, sorted), "with-replacement",'
        ' "weighted" (by weights_file),'
        ' "repeat-factors" (the same), "per-group" or "clips" (per_group of each group of the column), "buffer" (of'
        ' buffer_size), "filling-buffer" (webdataset\'s), "blocks" (of block_size) or "none"',
        json_schema_extra=_COMPOSED,
    )  # fmt: skip
    block_size: Counted | None = Field(
        None,
        description="a whole number, 1 or more: samples of a block, which are read one after another (mosaicml: its"
        " shuffle_block_size)",
        ge=1,
        json_schema_extra=_COMPOSED,
    )
    buffer_first: Counted | None = Field(
        None,
        description="a whole number, 1 or more: samples in a filling buffer before the first is read; 100 by default",
        ge=1,
        json_schema_extra=_COMPOSED,
    )
    copies: Counted | None = Field(
        None,
        description="a whole number, 1 or more: times that the data set stands in a row (mmcv's RepeatDataset)",
        ge=1,
        json_schema_extra=_COMPOSED,
    )
    per_group: Counted | None = Field(
        None,
        description="a whole number, 1 or more: samples drawn of each group",
        ge=1,
        json_schema_extra=_COMPOSED,
    )
    groups_at_once: Counted | None = Field(
        None,
        description="a whole number, 1 or more: groups drawn from before they are shuffled anew; all by default",
        ge=1,
        json_schema_extra=_COMPOSED,
    )
    column: Literal["size", "directory"] | None = Field(
        None,
        description='"size" (of the file) or "directory": by what samples are grouped',
        json_schema_extra=_COMPOSED,
    )
    column_file: str | None = Field(
        None,
        description="the absolute path of a file with a number a sample by which they are grouped, or of a .npy",
        json_schema_extra=_COMPOSED,
    )
    grouping: Literal["by-length", "batches"] | None = Field(
        None,
        description='"by-length" (sorted by the column, some batches at a time: HF\'s group_by_length) or "batches"'
        " (each of one group: torchvision's GroupedBatchSampler)",
        json_schema_extra=_COMPOSED,
    )
    group_batch: Counted | None = Field(
        None,
        description="a whole number, 1 or more: samples of a batch as by-length counts them (batch_size by default), or"
        " those of litdata's loader (1)",
        ge=1,
        json_schema_extra=_COMPOSED,
    )
    seeding: str | None = Field(
        None,
        description='"goes-on" (seeded once), "same" (in each epoch), a sum such as "seed+epoch" or'
        ' "1000*seed+epoch+rank+worker", "[seed,epoch]" (numpy), "fold-in" (jax, tf.data) or "split" (jax),'
        ' "drawn" (by the generator of the epoch before)',
        max_length=100,
        json_schema_extra=_COMPOSED,
    )
    seed_drawn_by: Literal["torch", "numpy", "numpy-legacy", "python"] | None = Field(
        None,
        description='"torch", "numpy", "numpy-legacy" or "python": the generator that "seed" is for, which draws the'
        " seed in use once",
        json_schema_extra=_COMPOSED,
    )
    seed_below: Counted | None = Field(
        None,
        description="a whole number, 1 or more: the seed that is drawn is below it; 2**31 for numpy, 2**32 for Python",
        ge=1,
        json_schema_extra=_COMPOSED,
    )
    endless: bool | None = Field(
        None,
        description=f"{_FLAG}: passes make one stream without an end, and an epoch is so many steps of it",
        json_schema_extra=_COMPOSED,
    )
    epoch_steps: Counted | None = Field(
        None,
        description="a whole number, 1 or more: steps of an epoch of an endless stream; as many as a pass has",
        ge=1,
        json_schema_extra=_COMPOSED,
    )
    dealing: (
        Literal[
            "strided", "padded", "contiguous", "shards", "pieces", "padded-pieces", "batches", "even-batches",
            "batches-and-pieces", "first", "alike",
        ]
        | None
    ) = Field(
        None,
        description='"strided" (indices[rank::world_size]), "padded" (the same, filled up from the start), "contiguous"'
        ' (a piece for each rank), "shards" (pieces as DALI cuts them), "pieces" (of one length), "padded-pieces" (the'
        ' same, filled up), "batches" (whole ones in turn), "even-batches" (the same, filled up), "batches-and-pieces"'
        ' (the rest in equal pieces, as Paddle), "first" (all of it to rank 0, which sends it on) or "alike" (all of it'
        " for each rank)",
        json_schema_extra=_COMPOSED,
    )  # fmt: skip
    worker_dealing: Literal["batches", "samples", "parts"] | None = Field(
        None,
        description='"batches" or "samples": what the workers of a loader take in turn, or "parts": each draws of a'
        " part of its own; the last two need num_workers",
        json_schema_extra=_COMPOSED,
    )

    generator: (
        Literal[
            "default", "own", "shared", "torch", "loader", "sampler", "numpy", "numpy-legacy", "python", "polars",
            "jax", "datapipe", "tensorflow", "cpp", "cpp-64", "grain",
        ]
        | None
    ) = Field(
        None,
        description='"default" (torch.manual_seed), "own" (the sampler\'s) or "shared" (the DataLoader\'s as well);'
        ' for an order put together "torch", "loader" (torch\'s, of which a DataLoader takes words), "sampler"'
        ' (RandomSampler without a DataLoader), "numpy" (default_rng), "numpy-legacy" (np.random.seed), "python",'
        ' "polars", "jax", "datapipe" (DataLoader over an IterDataPipe), "tensorflow" (tf.data), "cpp" or "cpp-64"'
        ' (std::mt19937, std::mt19937_64) or "grain" as well',
        json_schema_extra=_TORCH,
    )  # fmt: skip
    words_before: int | None = Field(
        None,
        description=f"{_WORDS}: words drawn from the generator before the first epoch, by the model for one",
        ge=0,
        le=MAX_WORDS,
        json_schema_extra=_TORCH,
    )
    words_between: int | None = Field(
        None,
        description=f"{_WORDS}: words that others draw from the generator in each epoch, such as 2 for another loader",
        ge=0,
        le=MAX_WORDS,
        json_schema_extra=_TORCH,
    )
    words_once: int | None = Field(
        None,
        description=f"{_WORDS}: words that others draw once, after the first epoch: 2 for one that keeps its workers",
        ge=0,
        le=MAX_WORDS,
        json_schema_extra=_TORCH,
    )
    trailing_permutation: bool | None = Field(
        None,
        description=f"{_FLAG}: the sampler is read to its end and so shuffles once more",
        json_schema_extra=_TORCH,
    )

    data_seed: int | None = Field(None, description=_SEED, json_schema_extra=_HF)
    use_seedable_sampler: bool | None = Field(None, description=_FLAG, json_schema_extra=_HF)
    split_batches: bool | None = Field(
        None,
        description=f"{_FLAG}: each batch of the loader is split among the ranks (batch_size is a rank's part)",
        json_schema_extra=_HF,
    )
    dispatch_batches: bool | None = Field(
        None, description=f"{_FLAG}: rank 0 reads the batches of all ranks", json_schema_extra=_HF
    )
    even_batches: bool | None = Field(
        None, description=f"{_FLAG}: the last batches are filled from the epoch's first", json_schema_extra=_HF
    )

    repeats: float | None = Field(
        None,
        description="a number, 1 to 1000: times each sample is read",
        ge=1,
        le=1000,
        allow_inf_nan=False,
        json_schema_extra=_AUGMENT,
    )
    selected_round: Counted | None = Field(
        None, description=f"{_COUNT}: the epoch is cut to a multiple of it", ge=0, json_schema_extra=_AUGMENT
    )
    selected_ratio: float | None = Field(
        None,
        description="a number, 0 or more: a rank reads one in so many samples; 0 for the world size",
        ge=0,
        allow_inf_nan=False,
        json_schema_extra=_AUGMENT,
    )

    shuffle_after_epoch: bool | None = Field(None, description=_FLAG, json_schema_extra=_DALI)
    stick_to_shard: bool | None = Field(
        None, description=f"{_FLAG}: a reader stays with its shard in all epochs", json_schema_extra=_DALI
    )
    dali_version: str | None = Field(
        None, description='DALI\'s version, such as "2.2"', pattern=r"^\d+(\.\d+)*", json_schema_extra=_DALI
    )

    buffer_size: Counted | None = Field(
        None,
        description="a whole number, 1 or more: the shuffle buffer's, or litdata's window",
        ge=1,
        json_schema_extra=_TF,
    )
    reshuffle_each_iteration: bool | None = Field(None, description=_FLAG, json_schema_extra=_TF)
    global_seed: int | None = Field(None, description=f"{_SEED}: tf.random.set_seed's", json_schema_extra=_TF)
    op_seed: int | None = Field(None, description=f"{_SEED}: the shuffle's own", json_schema_extra=_TF)
    list_seed: int | None = Field(
        None,
        description=f"{_SEED}: list_files's; left out, names come as the layout has them. DALI's"
        " shuffle_after_epoch_seed",
        json_schema_extra=_TF,
    )
    shard_first: bool | None = Field(
        None, description=f"{_FLAG}: shard() stands before shuffle(), as by default", json_schema_extra=_TF
    )
    passes_before: int | None = Field(
        None,
        description=f"{_COUNT}: passes over the data set that were begun before the first epoch's, read or not",
        ge=0,
        le=MAX_EPOCHS,
        json_schema_extra=_TF,
    )
    passes_between: int | None = Field(
        None,
        description=f"{_COUNT}: passes that are begun and not read between two epochs: 1 for Keras' fit on TensorFlow",
        ge=0,
        le=MAX_EPOCHS,
        json_schema_extra=_TF,
    )
    validation_split: float | None = Field(
        None, description="a number between 0 and 1", gt=0, lt=1, json_schema_extra=_TF
    )
    subset: Literal["training", "validation"] | None = Field(
        None, description='"training" or "validation"', json_schema_extra=_TF
    )
    shuffle_validation: bool | None = Field(
        None, description=f'{_FLAG}: false for the validation part of subset="both"', json_schema_extra=_TF
    )

    @field_validator("version", mode="before")
    @classmethod
    def _check_version(cls, version: Any) -> Any:
        if version is True or version != VERSION:
            refuse("version", version, f"{VERSION}, the version that this mlfs knows", "leave the field out")
        return version

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name in (".", ".."):  # the name becomes a file name in the control directory
            refuse("name", name, 'other than "." and ".."')
        return name

    @field_validator("root")
    @classmethod
    def _check_root(cls, root: str) -> str:
        parts = [part for part in root.split("/") if part not in ("", ".")]
        if root.startswith("/") or ".." in parts or not is_path(root):
            refuse("root", root, describe("root"), "the source is the directory that is mounted over")
        return "/".join(parts)

    @field_validator("extensions", mode="before")
    @classmethod
    def _check_extensions(cls, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
            refuse("extensions", value, describe("extensions"))
        endings = tuple(dict.fromkeys(item.lower().removeprefix(".") for item in value))
        if any(not ending or "/" in ending or not is_path(ending) for ending in endings):
            refuse("extensions", value, describe("extensions"))
        return endings

    @field_validator("columns", mode="before")
    @classmethod
    def _check_columns(cls, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
            refuse("columns", value, describe("columns"))
        if any(not is_path(item) or item.startswith("-") for item in value):
            refuse("columns", value, describe("columns"))
        return tuple(dict.fromkeys(value))

    @field_validator("preset", "sampler", "layout")
    @classmethod
    def _check_word(cls, word: str | None, info: ValidationInfo) -> str | None:
        field = str(info.field_name)
        known = {"preset": list(PRESETS), "sampler": sampler_names(), "layout": layout_names()}[field]
        if word is not None and word not in known:
            refuse(field, word, "one of " + ", ".join(known), nearest(word, known))
        return word

    @field_validator("split", mode="before")
    @classmethod
    def _check_split(cls, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not value:
            refuse("split", value, describe("split"))
        whole = all(type(item) is int and 0 <= item <= _MOST_COUNTED for item in value)
        parts = all(isinstance(item, float | int) and not isinstance(item, bool) and 0 <= item <= 1 for item in value)
        if not whole and not (parts and are_fractions(value)):
            refuse("split", value, describe("split"))
        return tuple(value)

    @field_validator("document_split", mode="before")
    @classmethod
    def _check_document_split(cls, value: Any) -> Any:
        if value is None:
            return None
        numbers = isinstance(value, list | tuple) and all(type(part) in (int, float) for part in value)
        if not numbers or not all(0 <= part <= _MOST_COUNTED for part in value) or not sum(value[:1]):
            refuse("document_split", value, describe("document_split"))
        return tuple(value)

    @field_validator("part", "without_part")
    @classmethod
    def _check_part(cls, part: int | None, info: ValidationInfo) -> int | None:
        split = info.data.get("split")
        if part is not None and split is not None and part >= len(split):
            refuse(
                str(info.field_name),
                part,
                f"less than {len(split)}, the number of parts in split",
                "parts count from 0",
            )
        return part

    @field_validator("start_epoch")
    @classmethod
    def _check_start_epoch(cls, start_epoch: int, info: ValidationInfo) -> int:
        epochs = info.data.get("epochs")
        if epochs is not None and start_epoch >= epochs:
            refuse("start_epoch", start_epoch, f"less than epochs, which is {epochs}", "epochs count from 0")
        return start_epoch

    @field_validator("order_file", "weights_file", "manifest_file", "column_file", "subset_file")
    @classmethod
    def _check_file(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None:
            return None
        field = str(info.field_name)
        if not path.startswith("/") or path.endswith("/") or not is_path(path):
            refuse(field, path, describe(field), "the daemon does not know your working directory")
        for found in _PLACEHOLDER.findall(path) if field == "order_file" else ():
            if found not in _PLACEHOLDERS:
                allowed = "a path with no other placeholders than " + " and ".join(_PLACEHOLDERS)
                refuse(field, path, allowed, nearest(found, _PLACEHOLDERS))
        return path

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for field in sorted(self.model_fields_set):
            if getattr(self, field) is not None and not self.reads(field):
                self._refuse_unread(field)
        sampler = built_in(self.sampler)
        for field, words in sampler.words.items() if sampler else ():
            if getattr(self, field) not in (None, *words):
                refuse(field, getattr(self, field), f'{one_of(words)} for the sampler "{self.sampler}"')
        for field in sorted(sampler.required) if sampler else ():
            if getattr(self, field) is None:
                message = f'job field "{field}" is missing: the sampler "{self.sampler}" needs it'
                raise JobError(message, f"give {describe(field)}", field)
        if self.loader_drop_last and "batch_size" not in self.model_fields_set:
            refuse("loader_drop_last", True, 'left out: there is no "batch_size"', 'add "batch_size"')
        if self.serve != "opportunistic" and self.level is not None:
            refuse("level", self.level, "left out: the order is not opportunistic", 'add "serve": "opportunistic"')
        if self.serve is None and self.nodes is not None:
            refuse("nodes", "...", "left out: the order is the sampler's own", 'add "serve": "locality"')
        if self.serve is not None and "batch_size" not in self.model_fields_set:
            refuse("serve", self.serve, 'left out: there is no "batch_size"', 'add "batch_size", that of the loader')
        self._check_split_together()
        return self

    def _check_split_together(self) -> None:
        for field in OF_SPLIT:
            if self.split is None and getattr(self, field) is not None:
                refuse(field, getattr(self, field), 'left out: there is no "split"', 'add "split": [0.8, 0.2]')
        for field in ("split_by", "stratified"):
            if getattr(self, field) is not None and self.split_seed is None:
                refuse(field, getattr(self, field), 'left out: there is no "split_seed"', 'add "split_seed"')
        if self.part is not None and self.without_part is not None:
            refuse("without_part", self.without_part, 'left out: "part" says what is read', "give one of the two")
        if self.split is not None and self.subset_file is not None:
            refuse("subset_file", self.subset_file, 'left out: there is a "split"', "give one of the two")
        split = self.split or ()
        folds = self.split_order == "sorted" and len(set(split)) == 1
        in_two = len(split) == 2 and self.without_part is None
        if self.stratified and (self.split_by != "numpy" or not (folds or in_two)):
            right = 'beside "split_by": "numpy" and a split in two, such as [0.2, 0.8], or in equal "sorted" folds'
            refuse("stratified", True, right, "of two, part 0 is the test part, part 1 the training")

    def _refuse_unread(self, field: str) -> None:
        word, what = ("layout", self.layout) if field in LAYOUT_FIELDS else ("sampler", self.sampler)
        readers = [n for n in layout_names() if field in layout_fields(n)] if word == "layout" else readers_of(field)
        hint = f"read by: {', '.join(readers)}" if readers else f"no {word} reads it"
        refuse(field, getattr(self, field), f"left out: the {word} {show(what)} does not read it", hint)

    def reads(self, field: str) -> bool:
        """Whether the field says anything for this job's sampler and layout."""
        if field in LAYOUT_FIELDS or field in layout_fields(self.layout):
            return field in layout_fields(self.layout)
        sampler = built_in(self.sampler)
        return field in COMMON or sampler is None or field in sampler.fields

    def understood(self) -> dict[str, Any]:
        """The fields that count for this job, as JSON's types: those given and the defaults of the others."""
        fields = self.model_dump(mode="json")
        return {field: value for field, value in fields.items() if value is not None and self.reads(field)}

    def to_json(self) -> str:
        """This job as one line of JSON; `parse_job` gives back an equal one, with the same fields given."""
        return json.dumps(self.model_dump(exclude_unset=True, exclude_none=True))


# Fields that say how a split is made.
OF_SPLIT: Final = ("part", "without_part", "split_seed", "split_by", "split_rounding", "split_order", "stratified")
# Fields that layouts read, and no sampler.
LAYOUT_FIELDS: Final = frozenset(
    field for name in layout_names() for field in layout_fields(name) if not readers_of(field)
)
# Fields that say which samples a job has.
DATA_FIELDS: Final = tuple(field for field, info in JobSpec.model_fields.items() if info.json_schema_extra == _DATA)
# Every job has these, whatever its sampler.
COMMON: Final = frozenset(
    field
    for field, info in JobSpec.model_fields.items()
    if info.json_schema_extra in (_JOB, _DATA, _RESUME, _SERVED, _LOADER) and field != "seed"
)


def describe(field: str) -> str:
    """A field's type, in words."""
    return JobSpec.model_fields[field].description or "something else"


def group_of(field: str) -> str:
    """The heading under which a field is documented."""
    extra = JobSpec.model_fields[field].json_schema_extra
    return str(extra["group"]) if isinstance(extra, dict) else ""
