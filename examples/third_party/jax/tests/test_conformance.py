from __future__ import annotations

from engine_jax.conformance import TestJax as TestJax
