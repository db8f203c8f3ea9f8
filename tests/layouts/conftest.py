"""Helpers are importable: batch_cases and what is made of them here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
