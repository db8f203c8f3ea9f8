"""Observers of inference-engine: what it builds and runs, for other people's tools.

opentelemetry.py  traces and metrics by the OpenTelemetry API
prometheus.py     counters, histograms and gauges of prometheus_client, served as text or not
recorder.py       requests with their values, as files in a folder; record.py: one such file
replay.py         `engine replay`: recorded requests against a model; verdicts.py: how they compare
requirements.py   the packages that they need; events.py: what they read of events; memory.py: the
                  memory of devices, which the first two read when they are asked

The first three are entries of group `engine.extensions.v1`: see `Observer` in engine/types.py.
"""

from __future__ import annotations

__version__ = "0.1.0"
