"""Nodes with hostile attributes, shapes, types and values end no process, and none hangs.

HOSTILE_NODES=50000 runs as many (about 40 minutes), HOSTILE_SEED=... others. HOSTILE_FIRST=N leaves
out those before N, and HOSTILE_LOG=FILE gets a line for each part as it is done: a run that was
stopped goes on where its log ends.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hostile_nodes.py")
FIRST = int(os.environ.get("HOSTILE_FIRST", "0"))
COUNT = int(os.environ.get("HOSTILE_NODES", "300"))
SEED = int(os.environ.get("HOSTILE_SEED", "11"))
LOG = os.environ.get("HOSTILE_LOG", "")
HANGS_S = 240.0  # a busy machine takes a minute to start the process
PART = 1000  # models of one process


def run(progress: Path, first: int, last: int) -> tuple[str, str]:
    """Run models in a process of their own.

    Returns how many had which outcome, and what is wrong with the one that the process ended at.
    """
    progress.write_bytes(struct.pack("<q", first))
    arguments = [sys.executable, str(SCRIPT), str(progress), str(SEED), str(first), str(last)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        seen, since = first, time.monotonic()
        while True:
            try:
                counts, said = child.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                number = at(progress)
                if number != seen:
                    seen, since = number, time.monotonic()
                elif time.monotonic() - since > HANGS_S:
                    child.kill()
                    return "", f"model {number} of seed {SEED} hangs"
    if at(progress) >= last and child.returncode == 0:
        return counts.strip(), ""
    wrong = f"model {at(progress)} of seed {SEED} ended with {child.returncode}: {said[-500:]}"
    return "", wrong


def at(progress: Path) -> int:
    [number] = struct.unpack("<q", progress.read_bytes())
    return int(number)


def log(line: str) -> None:
    if LOG:
        with open(LOG, "a") as file:
            file.write(f"{line}\n")


@pytest.mark.slow
@pytest.mark.timeout(3600 * 12)
def test_no_node_ends_the_process_or_hangs(tmp_path: Path) -> None:
    progress, number, found = tmp_path / "progress", FIRST, []
    while number < COUNT:
        first = number
        counts, wrong = run(progress, first, min(first + PART, COUNT))
        number = at(progress)
        log(f"seed {SEED}, {first} to {number - 1}: {wrong or counts}")
        if wrong:
            found.append(wrong)
            number += 1
    assert found == []
