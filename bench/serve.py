"""`engine serve` beside forty lines of starlette on uvicorn, and 64 clients beside a runner.

    python bench/serve.py                  round trips of one client, then 64 clients
    python bench/serve.py trips -n 40
    python bench/serve.py clients --seconds 8

Round trips: a tiny model (64 bytes in and out), and one that takes an image of 602 KB and gives
4 KB, over REST with binary tensors and over gRPC, by `tritonclient` and by a plain connection of
http.client. The floor runs the same model by onnxruntime in a handler of starlette. Contenders take
turns, in an order drawn anew each round; each figure is the median of the rounds' medians, ratios
are over the floor by the same client, and the control is the floor against itself. Clients: a
process with 64 threads asks a server for MobileNetV2, in turns with 64 threads that ask a
ModelParallelRunner of this process. The clients' own CPU time is printed, which the server cannot
have on this machine.
Needs the cpu backend, plugins/serve[tests] and the onnx package.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import models
import numpy as np

import engine

CLIENTS = 64
IMAGE = (1, 3, 224, 224)
Call = Callable[[], object]

FLOOR = """
import json, sys
import numpy as np, onnxruntime as ort, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

sessions = {}
for path in sys.argv[1:]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    sessions[path.rpartition("/")[2][:-5]] = ort.InferenceSession(path, options)

async def infer(request):
    body = await request.body()
    length = int(request.headers["inference-header-content-length"])
    head = json.loads(body[:length])
    feeds, at = {}, length
    for tensor in head["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        value = np.frombuffer(body, np.float32, size // 4, at)
        feeds[tensor["name"]] = value.reshape(tensor["shape"])
        at += size
    session = sessions[request.path_params["name"]]
    outputs, parts = [], []
    for spec, value in zip(session.get_outputs(), session.run(None, feeds)):
        raw = value.tobytes()
        outputs.append({"name": spec.name, "datatype": "FP32", "shape": value.shape,
                        "parameters": {"binary_data_size": len(raw)}})
        parts.append(raw)
    answer = {"model_name": request.path_params["name"], "outputs": outputs}
    head = json.dumps(answer).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return Response(b"".join([head, *parts]), headers=headers)

app = Starlette(routes=[Route("/v2/models/{name}/infer", infer, methods=["POST"])])

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}, ready", file=sys.stderr, flush=True)

Server(uvicorn.Config(app, port=0, log_level="error", access_log=False)).run()
"""


@contextmanager
def running(*command: str) -> Iterator[dict[str, int]]:
    """Run a server; give the ports that its log names until it is ready."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    log = ""
    try:
        while "ready" not in log:
            line = process.stderr.readline()
            if not line:
                raise RuntimeError(f"{command[0]} ended: {log}")
            log += line
        threading.Thread(target=process.stderr.read, daemon=True).start()
        found = re.findall(r"(http|gRPC at )[:/]*127.0.0.1:(\d+)", log)
        yield {kind[:4]: int(port) for kind, port in found}
    finally:
        process.terminate()
        process.wait()


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


def body_of(x: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a binary request."""
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": x.nbytes}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def plain(port: int, name: str, x: np.ndarray) -> Call:
    """Ask by a connection of http.client that is kept."""
    connection = HTTPConnection("127.0.0.1", port)
    connection.connect()
    body, headers = body_of(x)

    def call() -> bytes:
        connection.request("POST", f"/v2/models/{name}/infer", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    return call


def triton(kind: str, port: int, name: str, x: np.ndarray) -> Call:
    """Ask by tritonclient, as its users do: a new input each time."""
    from importlib import import_module

    client = import_module(f"tritonclient.{kind}")
    server = client.InferenceServerClient(f"127.0.0.1:{port}")

    def call() -> np.ndarray:
        given = client.InferInput("x", x.shape, "FP32")
        given.set_data_from_numpy(x)
        result: np.ndarray = server.infer(name, [given]).as_numpy("y")
        return result

    return call


def median_of(call: Call, calls: int) -> float:
    """Return the median time of a call, in seconds."""
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def trips(folder: Path, rounds: int, calls: int) -> None:
    """Print the table of round trips."""
    paths = [str(tiny_model(folder)), str(image_model(folder))]
    ports = ("--http-port", "0", "--grpc-port", "0")
    serve = (sys.executable, "-m", "engine.cli", "serve", *paths, *ports)
    with running(*serve) as own, running(sys.executable, "-c", FLOOR, *paths) as floor:
        print(f"{'model':7} {'client':18} {'floor':>9} {'served':>9} {'ratio':>6} {'control':>8}")
        for name, x in (("tiny", np.ones((1, 16), np.float32)), ("image", np.ones(IMAGE, "f4"))):
            ways = {
                "http.client": (plain(floor["http"], name, x), plain(own["http"], name, x)),
                "tritonclient http": (
                    triton("http", floor["http"], name, x),
                    triton("http", own["http"], name, x),
                ),
                "tritonclient grpc": (None, triton("grpc", own["gRPC"], name, x)),
            }
            times: dict[tuple[str, str], list[float]] = {}
            for _ in range(rounds):
                turns = [
                    (way, what, call)
                    for way, (base, served) in ways.items()
                    for what, call in (("floor", base), ("again", base), ("served", served))
                    if call is not None
                ]
                for way, what, call in random.sample(turns, len(turns)):
                    call()
                    times.setdefault((way, what), []).append(median_of(call, calls))
            for way in ways:
                mine = times[way, "served"]
                base = times.get((way, "floor")) or times["tritonclient http", "floor"]
                again = times.get((way, "again")) or base
                ratio = statistics.median(a / b for a, b in zip(mine, base))
                control = statistics.median(a / b for a, b in zip(again, base))
                shown = [statistics.median(values) * 1e3 for values in (base, mine)]
                print(
                    f"{name:7} {way:18} {shown[0]:6.3f} ms {shown[1]:6.3f} ms {ratio:6.2f} "
                    f"{control:8.2f}"
                )


def hammer(call_of: Callable[[], Call], seconds: float) -> list[float]:
    """Return the latencies of 64 threads that ask one after the other, in seconds."""
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
    for thread in threads:
        thread.join()
    return latencies


def hammer_server(port: int, seconds: float) -> None:
    """Be the process of the clients: print latencies and CPU time as JSON."""
    x = np.ones(IMAGE, np.float32)
    latencies = hammer(lambda: plain(port, "mobilenet_v2", x), seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([latencies, used.ru_utime + used.ru_stime]))


def clients(folder: Path, rounds: int, seconds: float) -> None:
    """Print the table of 64 clients."""
    path = models.mobilenet_v2(folder)
    named = f"mobilenet_v2={path}"
    runner = engine.ModelParallelRunner()
    runner.build_from_file(str(path))
    [spec] = runner.get_inputs()
    x = np.ones(IMAGE, np.float32)
    rates: dict[str, list[float]] = {"served": [], "runner": []}
    all_latencies: dict[str, list[float]] = {"served": [], "runner": []}
    cpu_s = []
    serve = (sys.executable, "-m", "engine.cli", "serve", named, "--http-port", "0", "--no-grpc")
    with running(*serve) as own:
        for _ in range(rounds):
            for what in random.sample(sorted(rates), 2):
                if what == "runner":
                    latencies = hammer(lambda: lambda: runner.predict({spec.name: x}), seconds)
                else:
                    command = [sys.executable, __file__, "hammer", str(own["http"]), str(seconds)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    latencies, used = json.loads(done.stdout)
                    cpu_s.append(used / len(latencies))
                rates[what].append(len(latencies) / seconds)
                all_latencies[what] += latencies
    ratio = statistics.median(a / b for a, b in zip(rates["served"], rates["runner"]))
    print(f"MobileNetV2, {CLIENTS} clients, {os.cpu_count()} CPUs")
    for what in ("runner", "served"):
        p50, p99 = np.quantile(all_latencies[what], (0.5, 0.99)) * 1e3
        rate = statistics.median(rates[what])
        print(f"{what:7} {rate:7.1f} requests/s, p50 {p50:6.1f} ms, p99 {p99:6.1f} ms")
    print(
        f"ratio {ratio:.2f}; the clients took {statistics.median(cpu_s) * 1e3:.2f} ms of CPU each"
    )
    runner.close()


def main() -> None:
    """Print the tables."""
    if sys.argv[1:2] == ["hammer"]:
        hammer_server(int(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("trips", "clients"), help="one table alone")
    parser.add_argument("-n", type=int, default=20, help="rounds (20)")
    parser.add_argument("--calls", type=int, default=50, help="calls a round (50)")
    parser.add_argument("--seconds", type=float, default=4, help="of 64 clients, a round (4)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if given.what != "clients":
            trips(Path(made), given.n, given.calls)
        if given.what != "trips":
            clients(Path(made), max(2, given.n // 5), given.seconds)


if __name__ == "__main__":
    main()
