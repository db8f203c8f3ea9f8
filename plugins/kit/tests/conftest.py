import os
import sys
from pathlib import Path

from engine_testing.fixtures import null_backend, plugin_folder

# The faulty backends are plugins: found by name, here and in the processes that tests start.
sys.path.insert(0, str(Path(__file__).parent))
os.environ["ENGINE_CACHE"] = "off"  # what a test builds is no business of the user's cache

__all__ = ["null_backend", "plugin_folder"]
