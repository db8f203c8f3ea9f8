"""Level of the kit: the words for how exactly to compute, `engine.types.Arithmetic`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.types import Arithmetic
from engine_testing import models
from engine_testing.level import Level, Trial

_LARGE = np.float32(2.0**40)  # of a float32, beyond float16's range
_LIMITS = {
    # Relative error of a sum of 32 positive products, with room for another order of the sum.
    Arithmetic.EXACT: 2.0**-17,
    Arithmetic.ROUNDED: 2.0**-7,  # two factors, each rounded to bfloat16's 8 bits at worst
    Arithmetic.FLOAT16: 2.0**-5,  # the sum too is rounded, 32 times to 11 bits
    Arithmetic.BFLOAT16: 2.0**-2,  # and here to 8 bits
}


class Words(Level):
    """A backend may be more exact than the user asks for, never less."""

    @pytest.mark.parametrize("arithmetic", list(Arithmetic), ids=str)
    def test_results_are_as_exact_as_asked_for(self, trial: Trial, arithmetic: Arithmetic) -> None:
        x = models.FINE[:64].reshape(2, 32)
        if arithmetic is not Arithmetic.FLOAT16:
            x = x * _LARGE
        precision: dict[str, Any] = {}
        if arithmetic is Arithmetic.FLOAT16 and trial.device.type in ("cpu", "gpu", "ascend"):
            precision["precision"] = "preferred_fp16"
        [y] = trial.open(models.dense, x, arithmetic=arithmetic, **precision).predict(x)
        exact = x.astype(np.float64) @ models.FINE.reshape(32, 4).astype(np.float64)
        error = float(np.abs(np.asarray(y, np.float64) / exact - 1).max())
        assert error <= _LIMITS[arithmetic], (
            f"arithmetic {str(arithmetic)!r}: off by {error:.1e}, and {_LIMITS[arithmetic]:.1e} "
            "is allowed"
        )
