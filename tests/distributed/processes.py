"""Ranks that are processes, as users start them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engine.distributed import job
from engine.distributed.store import StoreServer
from engine.host.child import command, environment

LIMIT_S = 120


JOIN = """
import json, os, sys, time
import numpy as np
from engine.distributed.job import this_job
from engine.distributed.local import LocalCommunicator
from engine.distributed.store import connect
from engine.errors import CommunicatorError
from engine.types import CommunicatorOptions, ReduceOp

job = this_job()
comm = LocalCommunicator(CommunicatorOptions(
    rank=job.rank, world_size=job.world_size, store=connect(job.address, job.key),
    timeout_s=job.timeout_s,
))

def tell(**facts):
    print(json.dumps(facts), flush=True)
"""
"""The beginning of a script whose ranks join one group, `comm`."""


@contextmanager
def started(
    script: str, world_size: int, *arguments: str, absent: Sequence[int] = (), **more: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a script once for each rank; what still runs at the end is killed."""
    with StoreServer() as server:
        ranks = [
            subprocess.Popen(
                command("-c", script, *arguments),
                env={**job.environment(server, rank, world_size), **_path(), **more},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
            if rank not in absent
        ]
        try:
            yield ranks
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()


def facts_of(rank: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for a rank that ends well; returns what it told, line by line."""
    out, errors = rank.communicate(timeout=LIMIT_S)
    assert rank.returncode == 0, errors
    return [json.loads(line) for line in out.splitlines()]


def _path() -> Mapping[str, str]:
    return {"PYTHONPATH": environment()["PYTHONPATH"]}
