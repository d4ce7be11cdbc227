"""What the environment of a launcher says of the ranks: drawn layouts, as each launcher would describe them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.cli.mount import registration
from mlfs.launchers import Ranks, ranks_seen

LAYOUT = st.lists(st.integers(1, 9), min_size=1, max_size=9).flatmap(
    lambda tasks: st.tuples(st.just(tasks), st.integers(0, len(tasks) - 1), st.integers(0, 8))
)


def runs(tasks: list[int]) -> str:
    """As Slurm writes it: 4(x2),3."""
    words: list[list[int]] = []
    for count in tasks:
        if words and words[-1][0] == count:
            words[-1][1] += 1
        else:
            words.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in words)


@given(LAYOUT)
def test_each_launcher_is_understood(drawn: tuple[list[int], int, int]) -> None:
    tasks, node, task = drawn
    world, first, here = sum(tasks), sum(tasks[:node]), tasks[node]
    local = task % here
    said = {
        "torchrun": {
            "WORLD_SIZE": world, "RANK": first + local, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": here,
            "SLURM_NTASKS": len(tasks), "SLURM_NODEID": node,
        },
        "Open MPI": {
            "OMPI_COMM_WORLD_SIZE": world, "OMPI_COMM_WORLD_RANK": first + local, "OMPI_COMM_WORLD_LOCAL_RANK": local,
            "OMPI_COMM_WORLD_LOCAL_SIZE": here,
        },
        "MPI": {
            "PMI_SIZE": world, "PMI_RANK": first + local, "MPI_LOCALRANKID": local, "MPI_LOCALNRANKS": here,
        },
        "Slurm": {"SLURM_NTASKS": world, "SLURM_NODEID": node, "SLURM_TASKS_PER_NODE": runs(tasks)},
    }  # fmt: skip
    for launcher, environment in said.items():
        assert ranks_seen({name: str(value) for name, value in environment.items()}) == Ranks(
            launcher, world, first, here
        )


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_even_nodes_are_understood_by_their_number(nodes: int, each: int, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, nodes - 1))
    world = str(nodes * each)
    by_slurm = {"SLURM_NTASKS": world, "SLURM_NTASKS_PER_NODE": str(each), "SLURM_NODEID": str(node)}
    by_torchrun = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": str(each), "GROUP_RANK": str(node)}
    for environment in (by_slurm, by_torchrun):
        found = ranks_seen(environment)
        assert found is not None
        assert found[1:] == (nodes * each, node * each, each)


NAMES = st.sampled_from(
    ["WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_NTASKS", "SLURM_NODEID",
     "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]
)  # fmt: skip
TEXTS = st.sampled_from(["", "0", "1", "4", "-1", "x", "9" * 30, "4(x2)", "4(x999999999)", "٣", "1,1"])


@given(st.dictionaries(NAMES, TEXTS))
def test_whatever_stands_there_the_ranks_lie_in_the_world(environment: dict[str, str]) -> None:
    found = ranks_seen(environment)
    if found is not None:
        assert 0 <= found.first < found.first + found.here <= found.world_size
        assert found.flags in "".join(registration("/data", environment))


@pytest.mark.parametrize(
    ("environment", "flags"),
    [
        ({}, "--sampler torch-random"),
        ({"SLURM_NTASKS": "8", "SLURM_NODEID": "1", "SLURM_TASKS_PER_NODE": "4(x2)"}, "--world-size 8 --ranks 4-7"),
        ({"SLURM_NTASKS": "8", "SLURM_NODEID": "7", "SLURM_TASKS_PER_NODE": "1(x8)"}, "--world-size 8 --ranks 7"),
        ({"SLURM_NTASKS": "8"}, "--sampler torch-random"),  # a batch script that asked for tasks anywhere
    ],
)
def test_the_line_that_is_printed(environment: dict[str, str], flags: str) -> None:
    line, _ = registration("'/da ta'", environment)
    assert line.startswith("  mlfs register '/da ta' --sampler ")
    assert flags in line
