"""Computes how much memory of a GPU a convolutional network takes.

Pure. In: a description of the layers. Out: bits. Called by mlfs.lab.sizing.batch and mlfs.lab.commands.advise_batch.

Source: Zou et al. (2017), Section 3.1.3, equations 1 to 5. A number has 32 bits; gradients take twice the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

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
        """Whether the layer has no parameters."""
        return self.filters == 0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of a layer's input or output: width B, height H, depth D."""

    width: int
    height: int
    depth: int

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
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
