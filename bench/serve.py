"""`engine serve` beside the least servers, beside other servers, and beside a runner.

    python bench/serve.py                  round trips of one client, then 64 clients
    python bench/serve.py trips -n 40
    python bench/serve.py clients --seconds 8
    python bench/serve.py --beside mlserver=ENV/bin/python

Round trips: a tiny model (64 bytes in and out), and one that takes an image of 602 KB and gives
4 KB, by `tritonclient`, and by http.client and grpc with a request that is made once. The floor
runs the same model by onnxruntime in a handler of starlette on uvicorn, and of grpc.aio:
servers/floor_*.py. Contenders take turns, in an order drawn anew each round; each figure is the
median of the rounds' medians, ratios are over the floor by the same client, and the control is the
floor against itself. Clients: a process with 64 threads asks a server for MobileNetV2, in turns
with 64 threads that ask a ModelParallelRunner of this process. The clients' own CPU time is
printed, which the server cannot have on this machine; the runner's is with the model's.
--beside: MLServer, KServe's Python server, LitServe and Triton by nvidia-pytriton, each by the
Python of an environment of its own, by servers/with_*.py: the same models by onnxruntime. MLServer
takes JSON over REST, LitServe has an interface of its own (JSON with base64), the others binary
tensors. The script says how to install what is not given.
Needs the cpu backend, plugins/serve[tests] and the onnx package.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import models
import numpy as np
from served import (
    OTHERS,
    OWN,
    Call,
    Kind,
    Running,
    own_server,
    plain,
    program,
    raw,
    settled,
    triton,
)

import engine

CLIENTS = 64
LONGEST_S = 0.5  # of one turn
IMAGE = (1, 3, 224, 224)


def beside(given: dict[str, str], paths: list[str], stack: ExitStack) -> dict[str, Running]:
    """Run the other servers; print how to install those that are not given."""
    found = {}
    for name, kind in OTHERS.items():
        if name in given:
            found[name] = stack.enter_context(program(given[name], f"with_{name}", kind, paths))
        else:
            print(
                f"{name} is not measured; to measure it:\n"
                f"  python3 -m venv {name} && {name}/bin/pip install {kind.packages}\n"
                f"  python bench/serve.py --beside {name}={name}/bin/python"
            )
    return found


def image_model(folder: Path) -> Path:
    """y, 1000 floats, from an image: their largest and zero; a model of a few microseconds."""
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17]>
    image (float[1, 3, 224, 224] x) => (float[1, 1000] y)
    <int64[1] begin = {0}, int64[1] end = {1000}, int64[1] axis = {1}, int64[2] flat = {1, -1}> {
        row = Reshape (x, flat)
        part = Slice (row, begin, end, axis)
        y = Relu (part)
    }"""
    onnx.save(onnx.parser.parse_model(text), folder / "image.onnx")
    return folder / "image.onnx"


def tiny_model(folder: Path) -> Path:
    """y = max(x, 0), 16 floats."""
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17]>
    tiny (float[1, 16] x) => (float[1, 16] y) { y = Relu (x) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "tiny.onnx")
    return folder / "tiny.onnx"


def median_of(call: Call, calls: int) -> float:
    """Return the median time of a call, in seconds; of fewer calls where they take long."""
    times: list[float] = []
    while len(times) < calls and sum(times) < LONGEST_S:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def trips(folder: Path, rounds: int, calls: int, given: dict[str, str]) -> None:
    """Print the table of round trips."""
    paths = [str(tiny_model(folder)), str(image_model(folder))]
    with ExitStack() as stack:
        rest = stack.enter_context(program(sys.executable, "floor_rest", OWN, paths))
        grpc = stack.enter_context(program(sys.executable, "floor_grpc", OWN, paths))
        servers = {"engine serve": stack.enter_context(own_server(*paths))}
        servers |= beside(given, paths, stack)
        print(f"{'model':6} {'client':18} {'server':13} {'trip':>10} {'over floor':>11}")
        for name, x in (("tiny", np.ones((1, 16), np.float32)), ("image", np.ones(IMAGE, "f4"))):
            made: dict[str, dict[str, Call]] = {}
            for client, ask, floor in (
                ("http.client", plain, rest),
                ("tritonclient http", partial(triton, "http"), rest),
                ("grpc", raw, grpc),
                ("tritonclient grpc", partial(triton, "grpc"), grpc),
            ):
                made[client] = {
                    what: settled(ask(server, name, x))
                    for what, server in {"floor": floor, "control": floor, **servers}.items()
                    if speaks(server.kind, client)
                }
            times: dict[tuple[str, str], list[float]] = {}
            for _ in range(rounds):
                turns = [(client, what) for client, asks in made.items() for what in asks]
                for client, what in random.sample(turns, len(turns)):
                    call = made[client][what]
                    call()
                    times.setdefault((client, what), []).append(median_of(call, calls))
            for client, what in ((client, what) for client, asks in made.items() for what in asks):
                mine = times[client, what]
                line = f"{name:6} {client:18} {what:13} {statistics.median(mine) * 1e3:7.3f} ms "
                line += f"{ratio_of(mine, times[client, 'floor']):11.2f}"
                if "grpc" in client:
                    same = "http.client" if client == "grpc" else "tritonclient http"
                    line += f" {ratio_of(mine, times[same, 'floor']):.2f} over REST's"
                print(line)


def speaks(kind: Kind, client: str) -> bool:
    """Return whether a server can be asked by a client."""
    if "grpc" in client:
        return kind.has_grpc
    return client == "http.client" or kind.rest != "own"


def ratio_of(mine: list[float], base: list[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(mine, base))


def hammer(call_of: Callable[[], Call], seconds: float) -> tuple[list[float], float, float]:
    """Let 64 threads ask, one request after the other, until the seconds are over.

    Returns the latencies, the seconds until the last answer, and those of this process's CPU time.
    """
    latencies: list[float] = []
    begin = threading.Barrier(CLIENTS + 1)

    def client(call: Call) -> None:
        begin.wait()
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            call()
            latencies.append(time.perf_counter() - start)

    threads = [threading.Thread(target=client, args=(call_of(),)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    begin.wait()
    begin_s, used_s = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    return latencies, time.perf_counter() - begin_s, time.process_time() - used_s


def hammer_server(port: int, seconds: float, rest: str) -> None:
    """Be the process of the clients: print what `hammer` returns. rest: "" for gRPC."""
    x = np.ones(IMAGE, np.float32)
    server = Running(Kind("", rest), port, port)
    ask = plain if rest else raw
    settled(ask(server, "mobilenet_v2", x))
    print(json.dumps(hammer(lambda: ask(server, "mobilenet_v2", x), seconds)))


class Load:
    """Latencies, rates and CPU times of the rounds of one contender, per request."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.rates: list[float] = []
        self.clients_s: list[float] = []
        self.served_s: list[float] = []

    def add(self, found: tuple[list[float], float, float], served_s: float) -> None:
        """Note a round. served_s: CPU time of the server."""
        latencies, took_s, used_s = found
        self.latencies += latencies
        self.rates.append(len(latencies) / took_s)
        self.clients_s.append(used_s / len(latencies))
        self.served_s.append(served_s / len(latencies))


def clients(folder: Path, rounds: int, seconds: float, given: dict[str, str]) -> None:
    """Print the table of 64 clients."""
    path = str(models.mobilenet_v2(folder))
    runner = engine.ModelParallelRunner()
    runner.build_from_file(path)
    [spec] = runner.get_inputs()
    x = np.ones(IMAGE, np.float32)
    with ExitStack() as stack:
        servers = {"engine serve": stack.enter_context(own_server(f"mobilenet_v2={path}"))}
        servers |= beside(given, [path], stack)
        ways = [(what, way) for what, server in servers.items() for way in ("REST", "gRPC")
                if way == "REST" or server.kind.has_grpc]  # fmt: skip
        loads = {way: Load() for way in [("runner", ""), *ways]}
        for _ in range(rounds):
            for (what, way), load in random.sample([*loads.items()], len(loads)):
                if what == "runner":
                    load.add(hammer(lambda: lambda: runner.predict({spec.name: x}), seconds), 0.0)
                    continue
                server = servers[what]
                port = str(server.http if way == "REST" else server.grpc)
                rest = server.kind.rest if way == "REST" else ""
                command = [sys.executable, __file__, "hammer", port, str(seconds), rest]
                begin_s = server.cpu_s()
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                load.add(json.loads(done.stdout), server.cpu_s() - begin_s)
    print(f"MobileNetV2, {CLIENTS} clients, {os.cpu_count()} CPUs; CPU time is of a request")
    for (what, way), load in loads.items():
        p50, p99 = np.quantile(load.latencies, (0.5, 0.99)) * 1e3
        ratio = ratio_of(load.rates, loads["runner", ""].rates)
        served_ms, clients_ms = (
            statistics.median(used_s) * 1e3 for used_s in (load.served_s, load.clients_s)
        )
        print(
            f"{what:12} {way:4} {statistics.median(load.rates):6.1f} requests/s, {ratio:5.2f} of "
            f"the runner's, p50 {p50:6.0f} ms, p99 {p99:6.0f} ms, CPU {served_ms:6.2f} ms of the "
            f"server, {clients_ms:5.2f} ms of the clients"
        )
    runner.close()


def main() -> None:
    """Print the tables."""
    if sys.argv[1:2] == ["hammer"]:
        hammer_server(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("trips", "clients"), help="one table alone")
    parser.add_argument("-n", type=int, default=20, help="rounds (20)")
    parser.add_argument("--calls", type=int, default=50, help="calls a round (50)")
    parser.add_argument("--seconds", type=float, default=4, help="of 64 clients, a round (4)")
    text = f"a server, by a Python that has it: {', '.join(OTHERS)}"
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=PYTHON", help=text)
    given = parser.parse_args()
    others = dict(each.split("=", 1) for each in given.beside)
    if unknown := others.keys() - OTHERS.keys():
        parser.error(f"--beside takes {', '.join(OTHERS)}, got {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as made:
        if given.what != "clients":
            trips(Path(made), given.n, given.calls, others)
        if given.what != "trips":
            clients(Path(made), max(2, given.n // 5), given.seconds, others)


if __name__ == "__main__":
    main()
