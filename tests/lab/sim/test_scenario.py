"""Scenario files: what is shipped loads, what is wrong is refused in one line with the nearest right name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mlfs.errors import ConfigError, SourceError
from mlfs.lab.policies.policy import Unfit
from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.order import SimulatedOrder
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import load, parse, shipped_folder, shipped_names

TEXT = """
title = "small"
[cluster]
nodes = 2
compute_MBps = 100
preprocess_MBps = 200
network_MBps = 1000
pfs_MBps = { 1 = 50, 2 = 80 }
[cluster.staging]
name = "staging"
capacity = "1MB"
read_MBps = 1000
threads = 2
[[cluster.classes]]
name = "ram"
capacity = "10MB"
read_MBps = 1000
threads = 2
[data]
samples = 100
mean = "100kB"
deviation = "20kB"
[job]
epochs = 2
batch = 8
"""


def test_all_shipped_scenarios_load_and_say_what_they_are() -> None:
    assert {"thesis-s1", "thesis-s4", "nopfs-imagenet22k", "environment-grid", "thousand-nodes"} <= set(shipped_names())
    assert sum(name.startswith("nopfs-") for name in shipped_names()) == 6
    for name in shipped_names():
        scenario = load(name)
        assert scenario.title
        assert scenario.model.epochs >= 5


def test_units_points_and_sizes_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TEXT)
    scenario = load(str(tmp_path / "a.toml"))
    assert scenario.model.pfs.at(2) == 80e6
    assert scenario.model.classes[0].capacity_bytes == 10e6
    assert scenario.model.global_batch == 16
    sizes = scenario.sizes_bytes()
    assert sizes.shape == (100,)
    assert 80e3 < sizes.mean() < 120e3
    assert (sizes == scenario.sizes_bytes()).all()
    assert scenario.shrunk(5).model.capacity_bytes == 4e6
    assert scenario.resized(["3MB"]).model.capacity_bytes == 6e6


def test_nodes_may_have_different_capacities() -> None:
    scenario = parse(TEXT.replace('"10MB"', '["10MB", "2MB"]'), "x")
    assert scenario.model.node_capacities_bytes().tolist() == [[10e6], [2e6]]
    assert scenario.model.classes[0].capacity_bytes == 6e6
    assert scenario.model.capacity_bytes == 12e6
    assert scenario.shrunk(2).model.node_capacities_bytes().tolist() == [[5e6], [1e6]]
    assert scenario.resized(["3MB"]).model.node_capacities_bytes().tolist() == [[3e6], [3e6]]
    nobody = parse(TEXT.replace('"10MB"', '["0", "0MB"]'), "x")
    assert nobody.model.classes == ()


def test_a_list_of_equal_capacities_is_one_capacity() -> None:
    one, listed = parse(TEXT, "x"), parse(TEXT.replace('"10MB"', '["10MB", "10MB"]'), "x")
    assert listed.model == one.model
    assert Simulation(listed).run(POLICIES["mlfs"], Sharing.CONSERVING) == Simulation(one).run(
        POLICIES["mlfs"], Sharing.CONSERVING
    )


def test_sizes_of_a_real_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "data"
    (source / "sub").mkdir(parents=True)
    (source / "a").write_bytes(b"x" * 10)
    (source / "sub" / "b").write_bytes(b"x" * 30)
    text = TEXT.replace('samples = 100\nmean = "100kB"\ndeviation = "20kB"', f'source = "{source}"')
    assert sorted(parse(text, "x").sizes_bytes()) == [10, 30]
    with pytest.raises(SourceError, match="No such file"):
        parse(text.replace(str(source), str(tmp_path / "none")), "x").sizes_bytes()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nodes = 2", "node = 2", r"unknown key cluster.node \(did you mean nodes\?\)"),
        ("epochs = 2", "epoch = 2", r"unknown key job.epoch \(did you mean epochs\?\)"),
        ('capacity = "10MB"', 'capacitiy = "10MB"', r"unknown key cluster.classes.0.capacitiy \(did you mean capacity"),
        ("nodes = 2", "nodes = 0", "cluster.nodes: Input should be greater than or equal to 1"),
        ("nodes = 2", "nodes = ", "x.toml: "),
        ("[job]", "[jobb]", r"unknown key jobb \(did you mean job\?\)"),
        ("batch = 8", "", "job.batch: is missing"),
        ('mean = "100kB"', 'mean = "100 apples"', "data.mean: .* is not a size"),
        ("samples = 100", "", "data: give either source"),
        ("{ 1 = 50, 2 = 80 }", "{ 0 = 50 }", "cluster.pfs_MBps: write a number of MB/s"),
        ("{ 1 = 50, 2 = 80 }", "{ one = 50 }", "cluster.pfs_MBps: "),
        ("{ 1 = 50, 2 = 80 }", '"fast"', "cluster.pfs_MBps: write a number of MB/s"),
        ('"10MB"', '["10MB"]', r"cluster: classes.0.capacity: 1 sizes for 2 nodes: write one size for all, or one for"),
        ('"10MB"', "[]", "cluster.classes.0.capacity: write a size from 0, or a list of them, one for each node"),
        ('"10MB"', "[1, -1]", "cluster.classes.0.capacity: write a size from 0, or a list"),
        ('"10MB"', '[1, "much"]', "cluster.classes.0.capacity: .* is not a size"),
        ('"1MB"', '["1MB", "2MB"]', "cluster.staging.capacity: write a size"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError, match=said) as raised:
        parse(TEXT.replace(old, new), "x.toml")
    assert "\n" not in str(raised.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no scenario 'thesis-s5' \(did you mean thesis-s"):
        load("thesis-s5")
    with pytest.raises(ConfigError, match="No such file"):
        load(str(tmp_path / "none.toml"))
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not text"):
        load(str(tmp_path / "b.toml"))


def test_every_epoch_deals_each_sample_once_and_evenly() -> None:
    scenario = parse(TEXT.replace("nodes = 2", "nodes = 3"), "x")
    for drop_last in (False, True):
        model = scenario.model.changed(drop_last=drop_last)
        order = SimulatedOrder(100, model, 0)
        for epoch in range(2):
            ids = order.epoch(epoch)
            real = ids[ids >= 0]
            assert len(np.unique(real)) == len(real) == (96 if drop_last else 100)
            assert np.ptp((ids >= 0).sum(axis=2), axis=1).max() <= 1
        assert (order.epoch(0) != order.epoch(1)).any()
        readers = order.readers()
        for node in range(3):
            mine = order.epoch(1)[:, node]
            assert set(np.flatnonzero(readers[1] == node)) == set(mine[mine >= 0].tolist())


ODD = {
    "one node": ("nodes = 2", "nodes = 1"),
    "more nodes than samples": ("nodes = 2", "nodes = 300"),
    "no staging buffer": ('capacity = "1MB"', "capacity = 0"),
    "nothing is kept": ('capacity = "10MB"', "capacity = 0"),
    "a node keeps nothing": ('capacity = "10MB"', 'capacity = ["10MB", 0]'),
    "less than a step": ("samples = 100", "samples = 3"),
    "one epoch": ("epochs = 2", "epochs = 1"),
    "empty samples": ('deviation = "20kB"', 'deviation = "2000kB"'),
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_scenarios_run_under_every_policy(odd: str) -> None:
    simulation = Simulation(parse(TEXT.replace(*ODD[odd]), "x"))
    for sharing in Sharing:
        bound = simulation.run(POLICIES["perfect"], sharing).seconds
        for policy in POLICIES.values():
            try:
                result = simulation.run(policy, sharing)
            except Unfit:
                continue
            assert result.seconds >= bound * 0.8, policy.name  # another deal of samples can be more even
            if policy.traits.true_order:
                assert bound <= result.seconds < 100, policy.name


def test_a_data_set_smaller_than_a_step_that_is_dropped_is_refused() -> None:
    text = TEXT.replace("samples = 100", "samples = 3") + "drop_last = true\n"
    with pytest.raises(ConfigError, match="3 samples make no step of 16"):
        Simulation(parse(text, "x"))


def test_the_fields_that_a_shipped_scenario_explains_are_fields() -> None:
    """Those that may be left out stand there as comments."""
    text = (shipped_folder() / "small-cluster.toml").read_text()
    whole = re.sub(r"^# (?=\w+ = |\[)", "", text, flags=re.MULTILINE)
    scenario = parse(whole, "small-cluster.toml")
    assert scenario.job.batch == 512
    assert scenario.model.node_pfs_bytes_per_s == 2500e6
    named = set(re.findall(r"^(\w+) = ", whole, re.MULTILINE))
    assert {"preprocess_threads", "write_MBps", "of_nodes", "drop_last", "sampler"} <= named
