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
from functools import partial
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
Dealing = Literal[
    "strided", "padded", "contiguous", "shards", "pieces", "padded-pieces", "batches", "even-batches",
    "batches-and-pieces", "first", "alike",
]  # fmt: skip
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


def _field(group: str, default: Any, description: str, **bounds: Any) -> Any:
    """A field of a group: its default (... where it must be given), its description, its bounds."""
    return Field(default, description=description, json_schema_extra={"group": group}, **bounds)


_JOB = partial(_field, "the job")
_DATA = partial(_field, "the data set")
_RESUME = partial(_field, "resuming")
_SERVED = partial(_field, "an order that mlfs serves")
_LOADER = partial(_field, "the DataLoader")
_SAMPLER = partial(_field, "the sampler")
_COMPOSED = partial(_field, "an order put together")
_TORCH = partial(_field, "generators")
_HF = partial(_field, "accelerate and HF Trainer")
_AUGMENT = partial(_field, "repeated augmentation")
_DALI = partial(_field, "DALI")
_TF = partial(_field, "tf.data and Keras")
_FLAG = "true or false"
_COUNT = "a whole number, 0 or more"
_WORDS = f"a whole number, 0 to {MAX_WORDS}"
_SEED = "a whole number of any size and sign"


class JobSpec(BaseModel):
    """One registered training run; see docs/orders.md for what each sampler makes of the fields.

    Fields stand in the order in which they are checked: a field may look at those above it.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True, title="mlfs job")

    version: Literal[1] = _JOB(1, "1, the version of this language")
    preset: str | None = _JOB(None, f"{one_of(PRESETS)}: sets what is not given as that framework does")
    name: str = _JOB("train", "1 to 64 letters, digits, '.', '_' or '-'", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    sampler: str = _JOB("torch-distributed", "the name of a sampler")
    seed: int = _JOB(0, _SEED)
    epochs: int = _JOB(
        ...,
        f"a whole number, 1 to {MAX_EPOCHS}: passes over the data, counted from 0, that the script makes",
        ge=1,
        le=MAX_EPOCHS,
    )
    batch_size: Counted = _JOB(1, "a whole number, 1 or more: samples a rank reads in one step", ge=1)
    world_size: int = _JOB(
        1,
        f"a whole number, 1 to {MAX_WORLD_SIZE}: training processes (for DALI and Grain: shards)",
        ge=1,
        le=MAX_WORLD_SIZE,
    )
    ranks: Ranks = _JOB(
        None, 'the ranks that read through this mount, as [0, 1] or "0-3,6"; all by default', validate_default=True
    )

    root: str = _DATA(
        "", 'a sub-directory of the source (for rows also a file), relative and without ".."; "" is the whole source'
    )
    layout: str = _DATA("imagefolder", one_of(layout_names()))
    extensions: tuple[str, ...] | None = _DATA(
        None, 'null for the layout\'s own, or a list of file name endings, such as ["jpg", "png"]'
    )
    manifest_file: str | None = _DATA(
        None,
        "the absolute path of a file with one sample a line, its files between tabs (manifest layout), or"
        " its file, offset and length (ranges layout), or of the ...document_index.npy in a GPTDataset's cache"
        " (megatron-gpt layout)",
    )
    row_bytes: Counted | None = _DATA(None, "a whole number, 1 or more: bytes of a row (raw layout)", ge=1)
    header_bytes: Counted | None = _DATA(None, f"{_COUNT}: bytes before a file's first row (raw layout)", ge=0)
    sequence_length: Counted | None = _DATA(
        None,
        "a whole number, 1 or more: tokens of a sample (megatron-gpt layout: --seq-length; nanogpt layout: block_size)",
        ge=1,
    )
    eval_interval: Counted | None = _DATA(
        None, "a whole number, 1 or more: steps between two evaluations by rank 0 (nanogpt layout)", ge=1
    )
    eval_batches: Counted | None = _DATA(None, f"{_COUNT}: batches of an evaluation (nanogpt layout: eval_iters)", ge=0)
    batches_a_step: Counted | None = _DATA(
        None,
        "a whole number, 1 or more: batches that a process reads in a step (nanogpt layout: its gradient accumulation)",
        ge=1,
    )
    document_split: tuple[int | float, ...] | None = _DATA(
        None, "null for all documents, or Megatron's --split, such as 969,30,1, whose first part is read"
    )
    columns: tuple[str, ...] | None = _DATA(
        None,
        'null, or a list of names, such as ["image", "mask"]: the data sets or columns that a sample has'
        " (hdf5, parquet and arrow layouts)",
    )
    pattern: str | None = _DATA(
        None,
        'a pattern of paths relative to root, "*/*.jpg" for files in class directories, or with braces'
        ' such as "train-{0000..0146}.tar" (braces layout)',
        pattern="[^/]",
    )
    split: tuple[int | float, ...] | None = _DATA(
        None, "the lengths given to random_split: whole numbers, or fractions of 1 such as [0.8, 0.2]"
    )
    part: Counted | None = _DATA(None, "a whole number, 0 or more: which part of the split is read", ge=0)
    split_seed: int | None = _DATA(
        None, f"{_SEED}: of random_split's generator; without it the data set is cut as it stands"
    )
    split_by: Literal["torch", "numpy", "python", "default_rng"] | None = _DATA(
        None,
        '"torch" (random_split), "numpy" (np.random.shuffle, sklearn), "python" (random.shuffle) or'
        ' "default_rng" (numpy\'s, HF datasets)',
    )
    without_part: Counted | None = _DATA(
        None, "a whole number, 0 or more: all parts of the split are read but this one", ge=0
    )
    split_rounding: Literal["spread", "down"] | None = _DATA(
        None, '"spread" (as random_split and sklearn do) or "down" (all parts but the last, as int(0.2 * n))'
    )
    split_order: Literal["drawn", "sorted"] | None = _DATA(
        None, '"drawn" or "sorted" (as KFold, or df.drop of what was sampled): the order of a part'
    )
    stratified: bool | None = _DATA(
        None, f"{_FLAG}: each directory is split alike: sklearn's train_test_split(stratify=labels), StratifiedKFold"
    )
    subset_file: str | None = _DATA(
        None, "the absolute path of a file with the dataset indices that are read, one a line, or of a .npy"
    )
    cached_samples: Counted | None = _DATA(
        None, f"{_COUNT}: so many first samples are kept in memory by the script, and never read while it trains", ge=0
    )

    start_epoch: int = _RESUME(0, "a whole number, 0 or more, less than epochs", ge=0)
    start_step: Counted = _RESUME(0, "a whole number, 0 or more: steps of the first epoch already done", ge=0)

    left_off: LeftOff | None = _SAMPLER(
        None,
        "where a run with litdata left off, as it is filled in from the state that resume names: "
        + ", ".join(LeftOff._fields),
    )

    serve: Literal["locality", "opportunistic"] | None = _SERVED(
        None,
        '"locality" or "opportunistic": the script reads an order of mlfs in place of its sampler\'s own;'
        " needs batch_size",
    )
    level: float | None = _SERVED(
        None,
        "a number, 0 to 1: the randomness that an opportunistic order has at least (1: a uniform shuffle)",
        ge=0,
        le=1,
        allow_inf_nan=False,
    )
    nodes: Nodes = _SERVED(
        None, "the nodes that a served order is dealt to, as the mount fills them in when the job is registered"
    )

    num_workers: Counted | None = _LOADER(None, f"{_COUNT}: worker processes of a DataLoader", ge=0)
    prefetch_factor: Counted | None = _LOADER(None, "a whole number, 1 or more: batches ahead of each worker", ge=1)
    persistent_workers: bool | None = _LOADER(None, f"{_FLAG}: workers live on between epochs")

    loader_drop_last: bool = _LOADER(False, f"{_FLAG}: the loader leaves out a last batch that is not full")

    shuffle: bool = _SAMPLER(True, f"{_FLAG}: the sampler's or reader's shuffle")
    drop_last: bool = _SAMPLER(False, "true or false: the sampler's drop_last, not the loader's")
    set_epoch: bool = _SAMPLER(
        True, f"{_FLAG}: the script calls set_epoch; without, every epoch has the first one's order"
    )
    contiguous: bool | None = _SAMPLER(
        None, f"{_FLAG}: each rank reads a piece of the data set, and not every so many-th sample"
    )
    shards_at_once: Counted | None = _SAMPLER(
        None, "a whole number, 1 or more: shards that a worker reads at a time (max_buffer_input_shards; 10)", ge=1
    )
    order_file: str | None = _SAMPLER(None, 'the absolute path of a file, in which "{epoch}" and "{rank}" are replaced')
    replacement: bool | None = _SAMPLER(None, _FLAG)
    num_samples: Counted | None = _SAMPLER(
        None, "a whole number, 1 or more: samples drawn an epoch; the data set's length by default", ge=1
    )
    weights_file: str | None = _SAMPLER(None, "the absolute path of a file with one weight a line, or of a .npy")
    reseed: bool | None = _SAMPLER(None, f"{_FLAG}: the generator is made anew each epoch, from seed + epoch")
    in_place: bool | None = _SAMPLER(
        None, f"{_FLAG}: each epoch shuffles what the epoch before left, and not the sorted indices"
    )
    legacy: bool | None = _SAMPLER(None, f"{_FLAG}: numpy's RandomState (np.random.seed) and not default_rng")

    shuffle_algo: Literal["py1e", "py1s", "py2s", "py1br", "naive"] | None = _SAMPLER(
        None, '"py1e", "py1s", "py2s", "py1br" or "naive": how MosaicML\'s StreamingDataset shuffles'
    )
    canonical_nodes: Counted | None = _SAMPLER(
        None, "a whole number, 1 or more: its num_canonical_nodes; as many as nodes (py1s, py2s: 64 times)", ge=1
    )
    physical_nodes: Counted | None = _SAMPLER(
        None, "a whole number, 1 or more: the nodes that its ranks run on; 1 by default", ge=1
    )

    draw: (
        Literal[
            "permutation", "shuffle", "sample", "with-replacement", "weighted", "repeat-factors", "per-group", "clips",
            "sorted-sample", "buffer", "filling-buffer", "blocks", "none",
        ]
        | None
    ) = _COMPOSED(None, '"permutation" (of the sorted indices), "shuffle" (of what the epoch before left, in place),'
        ' "sample" (the library\'s own, without replacement), "sorted-sample" (the same, sorted), "with-replacement",'
        ' "weighted" (by weights_file),'
        ' "repeat-factors" (the same), "per-group" or "clips" (per_group of each group of the column), "buffer" (of'
        ' buffer_size), "filling-buffer" (webdataset\'s), "blocks" (of block_size) or "none"')  # fmt: skip
    block_size: Counted | None = _COMPOSED(
        None,
        "a whole number, 1 or more: samples of a block, which are read one after another (mosaicml: its"
        " shuffle_block_size)",
        ge=1,
    )
    buffer_first: Counted | None = _COMPOSED(
        None, "a whole number, 1 or more: samples in a filling buffer before the first is read; 100 by default", ge=1
    )
    copies: Counted | None = _COMPOSED(
        None, "a whole number, 1 or more: times that the data set stands in a row (mmcv's RepeatDataset)", ge=1
    )
    per_group: Counted | None = _COMPOSED(None, "a whole number, 1 or more: samples drawn of each group", ge=1)
    groups_at_once: Counted | None = _COMPOSED(
        None, "a whole number, 1 or more: groups drawn from before they are shuffled anew; all by default", ge=1
    )
    column: Literal["size", "directory"] | None = _COMPOSED(
        None, '"size" (of the file) or "directory": by what samples are grouped'
    )
    column_file: str | None = _COMPOSED(
        None, "the absolute path of a file with a number a sample by which they are grouped, or of a .npy"
    )
    grouping: Literal["by-length", "batches"] | None = _COMPOSED(
        None,
        '"by-length" (sorted by the column, some batches at a time: HF\'s group_by_length) or "batches"'
        " (each of one group: torchvision's GroupedBatchSampler)",
    )
    group_batch: Counted | None = _COMPOSED(
        None,
        "a whole number, 1 or more: samples of a batch as by-length counts them (batch_size by default), or"
        " those of litdata's loader (1)",
        ge=1,
    )
    seeding: str | None = _COMPOSED(
        None,
        '"goes-on" (seeded once), "same" (in each epoch), a sum such as "seed+epoch" or'
        ' "1000*seed+epoch+rank+worker", "[seed,epoch]" (numpy), "fold-in" (jax, tf.data) or "split" (jax),'
        ' "drawn" (by the generator of the epoch before)',
        max_length=100,
    )
    seed_drawn_by: Literal["torch", "numpy", "numpy-legacy", "python"] | None = _COMPOSED(
        None,
        '"torch", "numpy", "numpy-legacy" or "python": the generator that "seed" is for, which draws the'
        " seed in use once",
    )
    seed_below: Counted | None = _COMPOSED(
        None, "a whole number, 1 or more: the seed that is drawn is below it; 2**31 for numpy, 2**32 for Python", ge=1
    )
    endless: bool | None = _COMPOSED(
        None, f"{_FLAG}: passes make one stream without an end, and an epoch is so many steps of it"
    )
    epoch_steps: Counted | None = _COMPOSED(
        None, "a whole number, 1 or more: steps of an epoch of an endless stream; as many as a pass has", ge=1
    )
    dealing: Dealing | None = _COMPOSED(
        None,
        '"strided" (indices[rank::world_size]), "padded" (the same, filled up from the start), "contiguous"'
        ' (a piece for each rank), "shards" (pieces as DALI cuts them), "pieces" (of one length), "padded-pieces" (the'
        ' same, filled up), "batches" (whole ones in turn), "even-batches" (the same, filled up), "batches-and-pieces"'
        ' (the rest in equal pieces, as Paddle), "first" (all of it to rank 0, which sends it on) or "alike" (all of it'
        " for each rank)",
    )
    worker_dealing: Literal["batches", "samples", "parts"] | None = _COMPOSED(
        None,
        '"batches" or "samples": what the workers of a loader take in turn, or "parts": each draws of a'
        " part of its own; the last two need num_workers",
    )

    generator: (
        Literal[
            "default", "own", "shared", "torch", "loader", "sampler", "numpy", "numpy-legacy", "python", "polars",
            "jax", "datapipe", "tensorflow", "cpp", "cpp-64", "grain",
        ]
        | None
    ) = _TORCH(None, '"default" (torch.manual_seed), "own" (the sampler\'s) or "shared" (the DataLoader\'s as well);'
        ' for an order put together "torch", "loader" (torch\'s, of which a DataLoader takes words), "sampler"'
        ' (RandomSampler without a DataLoader), "numpy" (default_rng), "numpy-legacy" (np.random.seed), "python",'
        ' "polars", "jax", "datapipe" (DataLoader over an IterDataPipe), "tensorflow" (tf.data), "cpp" or "cpp-64"'
        ' (std::mt19937, std::mt19937_64) or "grain" as well')  # fmt: skip
    words_before: int | None = _TORCH(
        None,
        f"{_WORDS}: words drawn from the generator before the first epoch, by the model for one",
        ge=0,
        le=MAX_WORDS,
    )
    words_between: int | None = _TORCH(
        None,
        f"{_WORDS}: words that others draw from the generator in each epoch, such as 2 for another loader",
        ge=0,
        le=MAX_WORDS,
    )
    words_once: int | None = _TORCH(
        None,
        f"{_WORDS}: words that others draw once, after the first epoch: 2 for one that keeps its workers",
        ge=0,
        le=MAX_WORDS,
    )
    trailing_permutation: bool | None = _TORCH(
        None, f"{_FLAG}: the sampler is read to its end and so shuffles once more"
    )

    data_seed: int | None = _HF(None, _SEED)
    use_seedable_sampler: bool | None = _HF(None, _FLAG)
    split_batches: bool | None = _HF(
        None, f"{_FLAG}: each batch of the loader is split among the ranks (batch_size is a rank's part)"
    )
    dispatch_batches: bool | None = _HF(None, f"{_FLAG}: rank 0 reads the batches of all ranks")
    even_batches: bool | None = _HF(None, f"{_FLAG}: the last batches are filled from the epoch's first")

    repeats: float | None = _AUGMENT(
        None, "a number, 1 to 1000: times each sample is read", ge=1, le=1000, allow_inf_nan=False
    )
    selected_round: Counted | None = _AUGMENT(None, f"{_COUNT}: the epoch is cut to a multiple of it", ge=0)
    selected_ratio: float | None = _AUGMENT(
        None,
        "a number, 0 or more: a rank reads one in so many samples; 0 for the world size",
        ge=0,
        allow_inf_nan=False,
    )

    shuffle_after_epoch: bool | None = _DALI(None, _FLAG)
    stick_to_shard: bool | None = _DALI(None, f"{_FLAG}: a reader stays with its shard in all epochs")
    dali_version: str | None = _DALI(None, 'DALI\'s version, such as "2.2"', pattern=r"^\d+(\.\d+)*")

    buffer_size: Counted | None = _TF(
        None, "a whole number, 1 or more: the shuffle buffer's, or litdata's window", ge=1
    )
    reshuffle_each_iteration: bool | None = _TF(None, _FLAG)
    global_seed: int | None = _TF(None, f"{_SEED}: tf.random.set_seed's")
    op_seed: int | None = _TF(None, f"{_SEED}: the shuffle's own")
    list_seed: int | None = _TF(
        None, f"{_SEED}: list_files's; left out, names come as the layout has them. DALI's shuffle_after_epoch_seed"
    )
    shard_first: bool | None = _TF(None, f"{_FLAG}: shard() stands before shuffle(), as by default")
    passes_before: int | None = _TF(
        None,
        f"{_COUNT}: passes over the data set that were begun before the first epoch's, read or not",
        ge=0,
        le=MAX_EPOCHS,
    )
    passes_between: int | None = _TF(
        None,
        f"{_COUNT}: passes that are begun and not read between two epochs: 1 for Keras' fit on TensorFlow",
        ge=0,
        le=MAX_EPOCHS,
    )
    validation_split: float | None = _TF(None, "a number between 0 and 1", gt=0, lt=1)
    subset: Literal["training", "validation"] | None = _TF(None, '"training" or "validation"')
    shuffle_validation: bool | None = _TF(None, f'{_FLAG}: false for the validation part of subset="both"')

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


def group_of(field: str) -> str:
    """The heading under which a field is documented."""
    extra = JobSpec.model_fields[field].json_schema_extra
    return str(extra["group"]) if isinstance(extra, dict) else ""


def _of_groups(*groups: partial[Any]) -> tuple[str, ...]:
    titles = [group.args[0] for group in groups]
    return tuple(field for field in JobSpec.model_fields if group_of(field) in titles)


# Fields that say which samples a job has.
DATA_FIELDS: Final = _of_groups(_DATA)
# Every job has these, whatever its sampler.
COMMON: Final = frozenset(_of_groups(_JOB, _DATA, _RESUME, _SERVED, _LOADER)) - {"seed"}


def describe(field: str) -> str:
    """A field's type, in words."""
    return JobSpec.model_fields[field].description or "something else"
