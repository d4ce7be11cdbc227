"""The mini-batch size and each layer's convolution algorithm: an integer program over the layers.

Pure. In: a network, candidate algorithms with their memory and time, a GPU. Out: for each batch size the fastest
choice that fits. Called by `mlfs.lab.commands.advise_batch`.

Source: Zou et al. (2017), equation 6: minimise sum x_kl T_kl subject to sum x_kl M_kl <= M_bound and one algorithm l
for each layer k. Solved by HiGHS (scipy.optimize.milp). A filter is as deep as its input, so D_(i-1) stands in
equation 3 where the paper prints D_i: AlexNet then has its 62 million parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Numbers of a real-to-complex transform's output count twice; Mathieu et al. (2013) give the operations.
_FFT_CONSTANT = 2.5


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm for one layer at one batch size."""

    algorithm: str
    memory_bits: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The best for one batch size.

    Attributes:
        batch: X_mini. bound_bits: M_bound. options: the algorithm of each convolution layer. seconds: of one batch;
            infinite when nothing fits, and then `options` is empty.
    """

    batch: int
    bound_bits: int
    options: tuple[Algorithm, ...]
    seconds: float

    @property
    def fits(self) -> bool:
        return bool(self.options)

    @property
    def samples_per_s(self) -> float:
        """The samples that the choice computes in a second, 0 when nothing fits."""
        if not self.fits:
            return 0.0
        return self.batch / self.seconds if self.seconds else math.inf


def solve(options: Sequence[Sequence[Algorithm]], bound: float) -> tuple[Algorithm, ...] | None:
    """One option for each layer with the least time whose memory is within the bound; None when none is (eq. 6)."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    if not options:
        return () if bound >= 0 else None
    flat = [option for layer in options for option in layer]
    scale = max(1.0, bound)  # bits of a GPU are 1e11: HiGHS's tolerances are meant for numbers near 1
    one_each = [[0.0] * len(flat) for _ in options]
    at = 0
    for row, layer in zip(one_each, options, strict=True):
        row[at : at + len(layer)] = [1.0] * len(layer)
        at += len(layer)
    longest = max(option.seconds for option in flat) or 1.0
    constraints = [
        LinearConstraint([[option.memory_bits / scale for option in flat]], ub=bound / scale),
        LinearConstraint(one_each, lb=1, ub=1),
    ]
    found = milp(
        [option.seconds / longest for option in flat],
        integrality=[1] * len(flat),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    return tuple(option for option, taken in zip(flat, found.x, strict=True) if taken > 0.5)


def choose(network: Network, batch: int, gpu_bits: int, options: Sequence[Sequence[Algorithm]]) -> Choice:
    """The best algorithms at one batch size."""
    bound = bound_bits(network, batch, gpu_bits)
    chosen = solve(options, bound) if bound >= 0 else None
    if chosen is None:
        return Choice(batch, bound, (), math.inf)
    return Choice(batch, bound, chosen, math.fsum(option.seconds for option in chosen))


def best(choices: Sequence[Choice]) -> Choice:
    """The batch size that trains fastest: most samples a second, of equals the smaller batch.

    Raises:
        ValueError: none fits.
    """
    fitting = [choice for choice in choices if choice.fits]
    if not fitting:
        raise ValueError("no batch size fits the GPU's memory")
    return max(fitting, key=lambda choice: (choice.samples_per_s, -choice.batch))


def gemm(layer: Layer, source: LayerShape, result: LayerShape, batch: int, flops: float) -> Algorithm:
    """Matrix multiplication: its input and output maps as memory, as Table 2 counts, 2 F F D D' B' H' operations."""
    memory = (source.numbers + result.numbers) * batch * BITS
    depth = source.depth // layer.groups
    operations = 2.0 * layer.filter**2 * depth * result.numbers * batch
    return Algorithm("gemm", memory, operations / flops)


def fft(layer: Layer, source: LayerShape, result: LayerShape, batch: int, flops: float) -> Algorithm:
    """Fast Fourier transform: filters padded to the input's size, all maps and filters as complex half planes.

    Memory: B_i (floor(H_i / 2) + 1) * 2 * (X D_i + X D_(i+1) + D_i D_(i+1)) numbers. Over that of `gemm` this gives
    Table 2 of the paper (11.6, 1.6, 2.4, 2.7, 2.4 for the printed 11.6, 1.6, 2.3, 2.7, 2.3). A stride saves nothing.
    """
    depth = source.depth // layer.groups
    planes = batch * source.depth + batch * result.depth + depth * result.depth
    memory = source.width * (source.height // 2 + 1) * 2 * planes * BITS
    edge = source.width * source.height
    transforms = 2 * _FFT_CONSTANT * edge * math.log2(max(2, edge)) * planes
    products = 4.0 * batch * depth * result.depth * edge
    return Algorithm("fft", memory, (transforms + products) / flops)


MODELS = {"gemm": gemm, "fft": fft}


def modelled(network: Network, batch: int, flops: dict[str, float]) -> list[list[Algorithm]]:
    """Options of every convolution layer by the models above, for the algorithms whose speed is given."""
    sizes = shapes(network)
    return [
        [MODELS[name](layer, source, result, batch, rate) for name, rate in flops.items()]
        for layer, source, result in zip(network.layers, sizes, sizes[1:], strict=False)
        if not layer.is_pooling
    ]


# -- how much memory of a GPU a convolutional network takes
#
# In: a description of the layers. Out: bits.
#
# Source: Zou et al. (2017), Section 3.1.3, equations 1 to 5. A number has 32 bits; gradients take twice the parameters.

BITS = 32
# Each parameter is stored three times: itself, the gradient of one instance, the aggregated gradient of the batch (the
# paper's footnote 4).
COPIES = 3


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the feature extraction.

    Attributes:
        name: what the user calls it.
        filter: F_i, the edge of a filter.
        stride: S_i.
        padding: P_i.
        filters: K_i, 0 for pooling.
        groups: into how many parts channels are split (AlexNet's two GPUs); 1 in the paper.
    """

    name: str
    filter: int
    stride: int = 1
    padding: int = 0
    filters: int = 0
    groups: int = 1

    @property
    def is_pooling(self) -> bool:
        return self.filters == 0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of a layer's input or output: width B, height H, depth D."""

    width: int
    height: int
    depth: int

    @property
    def numbers(self) -> int:
        return self.width * self.height * self.depth


@dataclass(frozen=True, slots=True)
class Network:
    """Feature extraction and classifier.

    Attributes:
        source: B_0 x H_0 x D_0.
        layers: 1 .. n.
        classifier: the neurons L_1 .. L_m of the fully connected part. L_1 is what the last feature map flattens to, if
            the user counts as the paper's formula does.
    """

    source: LayerShape
    layers: tuple[Layer, ...]
    classifier: tuple[int, ...]


def shapes(network: Network) -> list[LayerShape]:
    """The shapes of the input and of each layer's output, n + 1 in all (eq. 1). Sizes are rounded down.

    Raises:
        ValueError: a filter is larger than its input.
    """
    found = [network.source]
    for layer in network.layers:
        last = found[-1]
        sizes = []
        for edge in (last.width, last.height):
            size = (edge - layer.filter + 2 * layer.padding) // layer.stride + 1
            if size < 1:
                raise ValueError(f"layer {layer.name}: a filter of {layer.filter} does not fit an input of {edge}")
            sizes.append(size)
        found.append(LayerShape(sizes[0], sizes[1], last.depth if layer.is_pooling else layer.filters))
    return found


def feature_map_bits(network: Network, batch: int) -> int:
    """M_FM = sum over i = 0..n of B_i H_i D_i X_mini 32 (eq. 2)."""
    return sum(shape.numbers for shape in shapes(network)) * batch * BITS


def parameter_bits(network: Network) -> int:
    """M_MP = sum F_i F_i D_(i-1) K_i 3*32 + sum K_i 3*32 (eq. 3).

    The paper prints D_i; a filter is as deep as its layer's input, which eq. 1 calls D_(i-1).
    """
    total = 0
    for layer, before in zip(network.layers, shapes(network), strict=False):
        total += layer.filter * layer.filter * (before.depth // layer.groups) * layer.filters + layer.filters
    return total * COPIES * BITS


def classifier_bits(network: Network) -> int:
    """M_C = sum L_j 32 + sum L_j L_(j+1) 3*32 + (m-1) 3*32 (eq. 4, as printed: one bias a layer, outputs of one
    instance).
    """
    neurons = network.classifier
    if not neurons:
        return 0
    weights = sum(a * b for a, b in pairwise(neurons))
    return (sum(neurons) + weights * COPIES + (len(neurons) - 1) * COPIES) * BITS


def bound_bits(network: Network, batch: int, gpu_bits: int) -> int:
    """M_bound = M_GPU - M_FM - M_MP - M_C (eq. 5): what convolution algorithms may use as workspace."""
    return gpu_bits - feature_map_bits(network, batch) - parameter_bits(network) - classifier_bits(network)
