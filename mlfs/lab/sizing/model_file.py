"""Reads the description of a network and its GPU that `mlfs advise batch` works on.

In: a TOML file, or the name of one that ships with mlfs. Out: a checked `ModelFile`. Errors are ConfigErrors of one
line. Called by mlfs.lab.commands.advise.
"""

from __future__ import annotations

import os
from importlib import resources
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mlfs.errors import ConfigError
from mlfs.lab.sizing.batch import MODELS, Algorithm, Layer, LayerShape, Network, modelled
from mlfs.units import parse_size
from mlfs.user_input import InputError, parse_toml, read_toml

Bytes = Annotated[int, BeforeValidator(lambda value: parse_size(value, what="memory"))]
# Counts of layers, pixels and samples: with more, nothing fits any GPU, and products leave the range of floats.
_MOST = 10**9
Positive = Annotated[int, Field(ge=1, le=_MOST)]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class _Part(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", alias_generator=_dashed)


class MeasuredRuns(_Part):
    """Times and memory of one algorithm for one layer, one entry a batch size."""

    time_ms: tuple[Annotated[float, Field(gt=0, le=1e12)], ...]
    memory: tuple[Bytes, ...]


class LayerPart(_Part):
    """One layer; `filters` 0 or left out for pooling."""

    name: str
    filter: Positive
    stride: Positive = 1
    padding: int = Field(0, ge=0, le=_MOST)
    filters: int = Field(0, ge=0, le=_MOST)
    groups: Positive = 1
    measured: dict[str, MeasuredRuns] = Field(default_factory=dict)


class ModelFile(_Part):
    """The content of the file."""

    name: str = "model"
    gpu_memory: Bytes
    batches: tuple[Positive, ...] = Field(min_length=1)
    input: tuple[Positive, Positive, Positive]
    classifier: tuple[Positive, ...] = ()
    flops: dict[str, Annotated[float, Field(ge=1, le=1e30)]] = Field(default_factory=dict)
    layer: tuple[LayerPart, ...] = Field(min_length=1)

    @property
    def network(self) -> Network:
        layers = tuple(Layer(p.name, p.filter, p.stride, p.padding, p.filters, p.groups) for p in self.layer)
        return Network(LayerShape(*self.input), layers, self.classifier)

    @property
    def convolutions(self) -> list[LayerPart]:
        return [part for part in self.layer if part.filters]

    def options(self, batch: int) -> list[list[Algorithm]]:
        """Each convolution layer's algorithms at a batch size: measured ones, and the models for the others."""
        index = self.batches.index(batch)
        found = modelled(self.network, batch, self.flops)
        for options, part in zip(found, self.convolutions, strict=True):
            options[:] = [option for option in options if option.algorithm not in part.measured]
            for name, measured in part.measured.items():
                options.append(Algorithm(name, measured.memory[index] * 8, measured.time_ms[index] / 1000))
        return found


def shipped() -> list[str]:
    """Names of the examples that ship with mlfs."""
    directory = resources.files("mlfs.lab.sizing") / "examples"
    return sorted(item.name.removesuffix(".toml") for item in directory.iterdir() if item.name.endswith(".toml"))


def load(name: str) -> ModelFile:
    """The file of that path, or the example of that name; ConfigError for what cannot be used."""
    try:
        if name in shipped() and not os.path.exists(name):
            table = parse_toml((resources.files("mlfs.lab.sizing") / "examples" / f"{name}.toml").read_bytes())
        else:
            table = read_toml(name)
        model = ModelFile.model_validate(table)
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}", f"a TOML file, or one of: {', '.join(shipped())}") from None
    except InputError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}", "`mlfs advise batch --example` prints one") from None
    except ValidationError as error:
        raise _plain(name, error) from None
    _check(name, model)
    return model


def _plain(name: str, error: ValidationError) -> ConfigError:
    first: dict[str, Any] = dict(error.errors(include_url=False)[0])
    where = ".".join(str(part) for part in first["loc"])
    return ConfigError(f"{name}: {where}: {first['msg']}", "`mlfs advise batch --example` prints a right one")


def _check(name: str, model: ModelFile) -> None:
    unknown = sorted(set(model.flops) - set(MODELS))
    if unknown:
        raise ConfigError(
            f"{name}: flops.{unknown[0]}: only {' and '.join(MODELS)} have a model", "give it as measured"
        )
    for part in model.convolutions:
        if not part.measured and not model.flops:
            raise ConfigError(f"{name}: layer {part.name} has no algorithm", "add [flops] or [layer.measured.NAME]")
        for algorithm, measured in part.measured.items():
            if {len(measured.time_ms), len(measured.memory)} != {len(model.batches)}:
                wanted = f"{len(model.batches)} values each, one a batch size"
                raise ConfigError(f"{name}: layer {part.name}, {algorithm}: time-ms and memory need {wanted}", "")
