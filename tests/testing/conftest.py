import sys
from pathlib import Path

# The faulty backends are plugins: found by name, here and in the processes that tests start.
sys.path.insert(0, str(Path(__file__).parent))
