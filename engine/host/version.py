"""The version of the core; `.ci/version.py` knows all places that state one."""

__version__ = "0.1.0"
