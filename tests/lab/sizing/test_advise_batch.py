"""Memory of a network by hand, and the integer program against trying everything."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.errors import ConfigError
from mlfs.lab.sizing import model_file
from mlfs.lab.sizing.batch import (
    Algorithm,
    Choice,
    Layer,
    LayerShape,
    Network,
    best,
    bound_bits,
    choose,
    classifier_bits,
    feature_map_bits,
    fft,
    gemm,
    parameter_bits,
    shapes,
    solve,
)

ALEXNET = model_file.load("alexnet")
options = st.lists(
    st.lists(st.builds(Algorithm, st.just("any"), st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


def test_alexnet_has_the_known_shapes() -> None:
    found = shapes(ALEXNET.network)
    assert [(s.width, s.depth) for s in found] == [
        (224, 3), (55, 96), (27, 96), (27, 256), (13, 256), (13, 384), (13, 384), (13, 256), (6, 256),
    ]  # fmt: skip
    assert found[-1].numbers == ALEXNET.classifier[0]


def test_memory_by_hand() -> None:
    network = Network(LayerShape(4, 4, 2), (Layer("a", 3, 1, 1, 5), Layer("p", 2, 2)), (20, 10, 3))
    assert [s.numbers for s in shapes(network)] == [32, 80, 20]
    assert feature_map_bits(network, 7) == (32 + 80 + 20) * 7 * 32
    assert parameter_bits(network) == (3 * 3 * 2 * 5 + 5) * 3 * 32
    assert classifier_bits(network) == (33 * 32) + (200 + 30) * 3 * 32 + 2 * 3 * 32
    everything = feature_map_bits(network, 7) + parameter_bits(network) + classifier_bits(network)
    assert bound_bits(network, 7, 10**6) == 10**6 - everything


def test_alexnets_parameters_are_about_sixty_million() -> None:
    weights = (parameter_bits(ALEXNET.network) + classifier_bits(ALEXNET.network)) / 32 / 3
    assert 60e6 < weights < 63e6


def test_fft_over_gemm_is_table_2() -> None:
    rows = [
        (Layer("1", 11, 4, 2, 96), (224, 3), (55, 96), 11.6),
        (Layer("2", 5, 1, 2, 256), (27, 96), (27, 256), 1.6),
        (Layer("3", 3, 1, 1, 384), (13, 256), (13, 384), 2.3),
        (Layer("4", 3, 1, 1, 384), (13, 384), (13, 384), 2.7),
        (Layer("5", 3, 1, 1, 256), (13, 384), (13, 256), 2.3),
    ]
    for layer, (edge, depth), (edge_out, depth_out), printed in rows:
        source, result = LayerShape(edge, edge, depth), LayerShape(edge_out, edge_out, depth_out)
        fast, lean = (model(layer, source, result, 128, 1e12) for model in (fft, gemm))
        assert fast.memory_bits / lean.memory_bits == pytest.approx(printed, abs=0.08)


@settings(deadline=None, max_examples=cases(30))
@given(options, st.integers(0, 150))
def test_the_optimum_is_that_of_trying_everything(layers: list[list[Algorithm]], bound: int) -> None:
    fitting = [c for c in itertools.product(*layers) if sum(o.memory_bits for o in c) <= bound]
    found = solve(layers, bound)
    if not fitting:
        assert found is None
        return
    assert found is not None
    assert len(found) == len(layers)
    assert sum(o.memory_bits for o in found) <= bound
    assert sum(o.seconds for o in found) == min(sum(o.seconds for o in c) for c in fitting)


@pytest.mark.parametrize("gigabytes", [0.45, 0.8, 1.5, 12])
def test_alexnets_choice_is_that_of_trying_everything(gigabytes: float) -> None:
    for batch in (64, 128):
        layers = ALEXNET.options(batch)
        choice = choose(ALEXNET.network, batch, int(gigabytes * 8e9), layers)
        fitting = [c for c in itertools.product(*layers) if sum(o.memory_bits for o in c) <= choice.bound_bits]
        assert choice.fits == bool(fitting)
        if fitting:
            assert choice.seconds == pytest.approx(min(sum(o.seconds for o in c) for c in fitting))


def test_less_memory_is_never_faster_and_the_best_has_most_samples_a_second() -> None:
    times = [choose(ALEXNET.network, 128, int(g * 8e9), ALEXNET.options(128)).seconds for g in (0.9, 1.2, 2, 4, 12)]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) > 1
    slow, fast = Choice(8, 1, (Algorithm("a", 1, 1.0),), 2.0), Choice(16, 1, (Algorithm("a", 1, 1.0),), 3.0)
    assert best([slow, fast, Choice(32, -1, (), math.inf)]) is fast
    with pytest.raises(ValueError, match="no batch size"):
        best([Choice(32, -1, (), math.inf)])


GOOD = """\
gpu-memory = "1G"
batches = [2]
input = [8, 8, 3]
[flops]
gemm = 1e12
[[layer]]
name = "c"
filter = 3
filters = 4
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gemm = 1e12", "winograd = 1e12", "flops.winograd"),
        ("gemm = 1e12", "gemm = 0.0", "flops.gemm"),
        ("[flops]\ngemm = 1e12\n", "", "no algorithm"),
        ("batches = [2]", "batches = []", "batches"),
        ("filter = 3\n", "", "filter"),
        ("[8, 8, 3]", "[8, 8]", "input"),
        ("filters = 4\n", 'filters = 4\n[layer.measured.x]\ntime-ms = [1, 2]\nmemory = ["1M"]\n', "1 values"),
        ("[[layer]]", "[[layer", "not valid TOML"),
        ('"1G"', '"many"', "many"),
    ],
)
def test_a_wrong_model_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "model.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        model_file.load(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_measured_times_win_over_the_models(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(GOOD + '[layer.measured.gemm]\ntime-ms = [5]\nmemory = ["1K"]\n')
    assert model_file.load(str(path)).options(2) == [[Algorithm("gemm", 8192, 0.005)]]
