"""Helpers of this folder's tests are importable: fake_device, plan_models."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
