"""FFCV's files, as ffcv/writer.py writes them (FFCV 1.0)."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_beton(path: Path, samples: list[list[bytes]], page_bytes: int) -> np.ndarray:
    """Write samples of fields of bytes. Returns each sample's places and sizes."""
    header = np.dtype([("version", "<u2"), ("fields", "<u2"), ("page", "<u4"), ("samples", "<u8"), ("table", "<u8")])
    field = np.dtype([("type", "<u1"), ("name", "<u1", 16), ("arguments", "<u1", 1024)])
    places = np.zeros((len(samples), len(samples[0])), [("ptr", "<u8"), ("size", "<u8")])
    fields = np.zeros(len(samples[0]), field)
    data, allocated = bytearray(-(-(header.itemsize + fields.nbytes + places.nbytes) // page_bytes) * page_bytes), []
    order = np.random.default_rng(1).permutation(len(samples))  # its writers take turns
    for sample in order.tolist():
        left = -len(data) % page_bytes
        if sum(map(len, samples[sample])) > left:
            data += bytes(left)
        for at, content in enumerate(samples[sample]):
            places[sample, at] = len(data), len(content)
            allocated.append((sample, len(data), len(content)))
            data += content
    data += bytes(-len(data) % page_bytes)
    head = np.array([(2, len(fields), page_bytes, len(samples), len(data))], header)
    begin = head.tobytes() + fields.tobytes() + places.tobytes()
    data[: len(begin)] = begin
    path.write_bytes(data + np.array(allocated, "<u8").tobytes())
    return places
