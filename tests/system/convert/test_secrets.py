"""Conversions and loads with a key, killed at any moment: nothing in clear is left anywhere."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import parsed
from waiting import wait_until

from engine.formats import encryption

KEY = bytes(range(16))
SECRET = "a_name_that_nobody_else_has"
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
SHARED = Path("/dev/shm")

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="there are no files in memory here")


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tensors bear SECRET, large enough to be some time in each step."""
    folder = tmp_path_factory.mktemp("secret")
    chance = np.random.default_rng(1)
    weights = [chance.standard_normal((256, 256)).astype("f") / 16 for _ in range(24)]
    names = [f"{SECRET}_{number}" for number in range(25)]
    nodes = [
        f"[of_{second}] {second} = MatMul({first}, w{number})"
        for number, (first, second) in enumerate(pairwise(names))
    ]
    ends = f"(float[1, 256] {names[0]}) => (float[1, 256] {names[-1]})"
    held = {f"w{number}": array for number, array in enumerate(weights)}
    model = parsed("\n".join([f"{SECRET} {ends} {{", *nodes, "}"]), **held)
    model.producer_name = SECRET
    onnx.save(model, folder / "plain.onnx")
    sealed = encryption.encrypt(model.SerializeToString(), KEY)
    (folder / "sealed.mindir").write_bytes(sealed)
    (folder / "samples").mkdir()
    for number in range(6):
        np.save(folder / "samples" / f"{number}.npy", chance.standard_normal((1, 256)).astype("f"))
    for kind in ("FULL", "DYNAMIC", "WEIGHT"):
        data = (
            "[data_preprocess_param]\n"
            f"calibrate_path={names[0]}:{folder / 'samples'}\ninput_type=BIN\n"
        )
        settings = f"[common_quant_param]\nquant_type={kind}_QUANT\n"
        (folder / f"{kind}.ini").write_text(settings + data * (kind == "FULL"))
    return folder


def commands(secret: Path, output: Path) -> list[list[str]]:
    key = KEY.hex()
    return [
        *(
            ["convert", f"{secret}/plain.onnx", f"{output}/{kind}", "--quantize",
             f"{secret}/{kind}.ini", "--encrypt-key", key, "--infer"]
            for kind in ("FULL", "DYNAMIC")
        ),
        ["convert", f"{secret}/sealed.mindir", f"{output}/again", "--dec-key", key,
         "--encrypt-key", key, "--quantize", f"{secret}/WEIGHT.ini"],
        ["run", f"{secret}/sealed.mindir", "--dec-key", key],
        ["inspect", f"{secret}/sealed.mindir", "--dec-key", key, "--target", "cpu"],
    ]  # fmt: skip


def start(arguments: list[str], temporary: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "engine.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # a line or two
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    )


def in_clear(*folders: Path) -> Iterator[Path]:
    """The files under these folders in which the secret can be read."""
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                if path.is_file() and SECRET.encode() in path.read_bytes():
                    yield path
            except OSError:  # of another process, and gone meanwhile
                continue


def kill_at_moments(secret: Path, tmp_path: Path, count: int, kinds: int) -> None:
    """Kill the first `kinds` of the commands in turn, at random moments of their run."""
    chance = random.Random(7)
    output, temporary = tmp_path / "output", tmp_path / "temporary"
    output.mkdir()
    temporary.mkdir()
    lengths = []
    for arguments in commands(secret, output)[:kinds]:
        begin = time.monotonic()
        with start(arguments, temporary) as child:
            assert child.wait(120) == 0, arguments
        lengths.append(time.monotonic() - begin)
    results = {path.name for path in output.iterdir()}

    def left() -> list[Path]:
        new = [path for path in output.iterdir() if path.name not in results]
        return [*temporary.iterdir(), *new, *in_clear(output, SHARED)]

    for number in range(count):
        index = number % len(lengths)
        with start(commands(secret, output)[index], temporary) as child:
            time.sleep(chance.uniform(0.2, 1) * lengths[index])
            child.send_signal(SIGNALS[number % 3])
            status = child.wait(60)
            said = child.stderr.read() if child.stderr else b""
        # A negative one: before the command had begun to listen.
        assert status in (0, 143, 129, 130, -15, -1, -2), (index, said)
        wait_until(lambda: not left())  # what a process that ended leaves others remove
        assert {path.name for path in output.iterdir()} == results


def test_a_kill_leaves_nothing_in_clear(secret, tmp_path):
    kill_at_moments(secret, tmp_path, 3, kinds=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_kills_leave_nothing_in_clear(secret, tmp_path):
    kill_at_moments(secret, tmp_path, 100, kinds=5)
