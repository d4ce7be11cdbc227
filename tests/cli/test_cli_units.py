"""Sizes and durations, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.errors import ConfigError
from mlfs.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64G", 64 * 2**30),
        ("64GiB", 64 * 2**30),
        ("64GB", 64 * 10**9),
        ("1.5TiB", 3 * 2**39),
        ("512M", 512 * 2**20),
        ("4096", 4096),
        (" 10 k ", 10240),
        ("17b", 17),
        (4096, 4096),
        ("0", 0),
        ("10%", 100),
        ("2.5 %", 25),
        ("100%", 1000),
        ("8191P", 8191 * 2**50),
    ],
)
def test_sizes_as_people_write_them(text: str | int, size_bytes: int) -> None:
    assert parse_size(text, of_bytes=1000) == size_bytes


@pytest.mark.parametrize("text", ["", "G", "64X", "-1", "1e9", "64 G B", "1.2.3", "101%", "9E", "٣", -5, True])
def test_a_bad_size_is_named_with_examples(text: object) -> None:
    with pytest.raises(ConfigError) as error:
        parse_size(text, of_bytes=1000, what="--ram")  # type: ignore[arg-type]
    assert "--ram" in error.value.message
    assert repr(text) in error.value.message
    assert "64G" in error.value.hint


def test_a_percentage_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="percentage"):
        parse_size("10%")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("2s", 2),
        ("1h", 3600),
        ("1m30s", 90),
        ("1 h 30 min", 5400),
        ("2", 2),
        (0.5, 0.5),
        ("40us", 4e-5),
    ],
)
def test_durations_as_people_write_them(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "1x", "-2s", "1s2", "nan", float("nan"), float("inf"), True, "1e9d"])
def test_a_bad_duration_is_named_with_examples(text: object) -> None:
    with pytest.raises(ConfigError) as error:
        parse_duration(text, what="--timeout")  # type: ignore[arg-type]
    assert "--timeout" in error.value.message
    assert "250ms" in error.value.hint


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (2**40 - 1, "1 TiB"), (1536, "1.5 KiB"), (2**64, "16 EiB")],
)
def test_sizes_for_people(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.00025, "250 us"),
        (0.0015, "1.5 ms"),
        (0.9999, "1.0 s"),
        (2, "2.0 s"),
        (59.97, "1 min"),
        (90, "1 min 30 s"),
        (11100, "3 h 5 min"),
        (187200, "2 d 4 h"),
        (-2, "-2.0 s"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 2**62))
def test_a_formatted_size_reads_back_within_its_rounding(size_bytes: int) -> None:
    # One decimal is at worst 5 % of the smallest number shown with a unit (1.0).
    assert parse_size(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.05)
