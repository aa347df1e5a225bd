"""Numbers for people and for JSON; nothing odd raises."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hpctrain.monitor import words

ODD = [
    None,
    math.nan,
    math.inf,
    -math.inf,
    0,
    0.0,
    -0.0,
    -1,
    1e308,
    5e-324,
    2**70,
    np.float32("nan"),
    np.int64(3),
    True,
]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234, "1,234"), (1234567.0, "1,234,567"), (-1000, "-1,000"), (None, "-")]
)
def test_count(value: float | None, text: str) -> None:
    assert words.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.034, "0.034"),
        (5, "5"),
        (12.34, "12"),
        (987.4, "987"),
        (999.6, "1.00 k"),
        (1234, "1.23 k"),
        (12345, "12.3 k"),
        (99_960, "100 k"),
        (123456, "123 k"),
        (999_600, "1.00 M"),
        (4.56e9, "4.56 G"),
        (1e16, "10000 T"),
        (math.nan, "nan"),
        (None, "-"),
    ],
)
def test_compact(value: float | None, text: str) -> None:
    assert words.compact(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0:00"),
        (7.4, "0:07"),
        (62, "1:02"),
        (59.7, "1:00"),
        (3599.9, "1:00:00"),
        (11045, "3:04:05"),
        (183845, "2 d 3:04:05"),
        (-3, "0:00"),
        (math.inf, "-:--"),
        (None, "-:--"),
    ],
)
def test_clock(value: float | None, text: str) -> None:
    assert words.clock(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0354, "35 ms"), (0.9996, "1.0 s"), (4.25, "4.2 s"), (59.97, "1:00 min"), (62, "1:02 min"), (None, "-:--")],
)
def test_seconds(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123449, "0.1234"),
        (12.3, "12.30"),
        (1234.4, "1234"),
        (12345.6, "12346"),
        (1.2e-7, "1.200e-07"),
        (-math.inf, "-inf"),
    ],
)
def test_figure(value: float, text: str) -> None:
    assert words.figure(value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.97218, "97.22 %"),
        ("top_k", 1.0, "100.00 %"),
        ("r2", 0.5, "0.5000"),
        ("accuracy", math.nan, "nan"),
    ],
)
def test_metric(name: str, value: float, text: str) -> None:
    assert words.metric(name, value) == text


@pytest.mark.parametrize("value", ODD)
def test_nothing_odd_raises(value: float | None) -> None:
    for spell in (words.count, words.compact, words.clock, words.seconds, words.figure):
        assert isinstance(spell(value), str)
    assert isinstance(words.metric("accuracy", value), str)


def test_plain_makes_strict_json() -> None:
    value = {
        "a": np.float32(0.5),
        "b": [math.nan, np.inf, np.int64(3), np.bool_(True)],
        "c": np.array([1.0, np.nan]),
        3: (Path("x"), None, True, 2**70),
        "d": {"e": "größe"},
    }
    plain = words.plain(value)
    assert plain == {
        "a": 0.5,
        "b": [None, None, 3, True],
        "c": [1.0, None],
        "3": ["x", None, True, 2**70],
        "d": {"e": "größe"},
    }
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
