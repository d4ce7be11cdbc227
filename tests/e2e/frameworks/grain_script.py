"""Trains with Grain: python grain_script.py DIRECTORY SEED EPOCHS. Knows nothing of mlfs.

Two worker processes with several threads each; prints the number that each sample begins with, as the loop got them.
"""

import sys
from pathlib import Path

import grain.python as grain


class Files:
    """A random access data source over the files of class directories."""

    def __init__(self, directory: str) -> None:
        self.paths = sorted(str(path) for path in Path(directory).glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        with open(self.paths[index], "rb") as file:
            return int.from_bytes(file.read()[:4], "little")


def main() -> None:
    """One loader for all epochs, as Grain has it."""
    directory, seed, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    source = Files(directory)
    sampler = grain.IndexSampler(len(source), grain.NoSharding(), shuffle=True, num_epochs=epochs, seed=seed)
    loader = grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[grain.Batch(8)],
        worker_count=2,
        worker_buffer_size=1,
        read_options=grain.ReadOptions(num_threads=2, prefetch_buffer_size=4),
    )
    print(*(int(value) for batch in loader for value in batch))


if __name__ == "__main__":
    main()
