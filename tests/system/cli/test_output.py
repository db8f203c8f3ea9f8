"""Numbers and names as people read them."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cli.output import duration, plain, size
from engine.report.archive import storable


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1 kB"), (76_844, "76.8 kB"),
        (999_499, "999 kB"), (999_500, "1 MB"), (1_250_000_000, "1.25 GB"),
        (2 * 10**12, "2 TB"), (3 * 10**15, "3000 TB"),
    ],
)  # fmt: skip
def test_sizes_have_units(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(85e-6, "85.0 us"), (1.2e-3, "1.20 ms"), (0.25, "250 ms"), (3.4, "3.40 s"), (75, "75.00 s")],
)
def test_durations_have_units(seconds, text):
    assert duration(seconds) == text


def test_plain_spells_out_what_would_drive_a_terminal():
    assert plain("a\x1b[31mb\rc\u202ed") == r"a\x1b[31mb\rc\u202ed"
    assert plain("größe [bold] 数") == "größe [bold] 数"


def test_values_are_stored_exactly_in_a_type_that_numpy_files_have():
    import ml_dtypes

    values = [0.5, -3.0, 240.0]
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        kept = storable(np.array(values, dtype))
        assert (kept.dtype, kept.tolist()) == (np.float32, values)
    kept = storable(np.array([-8, 7], ml_dtypes.int4))
    assert (kept.dtype, kept.tolist()) == (np.int8, [-8, 7])
    doubles = np.array(values)
    assert storable(doubles) is doubles
