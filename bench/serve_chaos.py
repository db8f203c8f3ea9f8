"""Load on `engine serve` while its worker processes are killed, models reload and clients vanish.

    python bench/serve_chaos.py                  two minutes, 64 clients, a SIGKILL every second
    python bench/serve_chaos.py --seconds 10 --clients 16 --every 0.5

Clients ask without a pause, half of them over REST, half over gRPC, for two models: "net" runs in
two worker processes and permutes columns; "rolling" runs in the server, and its version n gives
n * x. Each request has an input of its own, and its answer is compared with what numpy gives, bit
by bit. Meanwhile a random worker gets SIGKILL, now and then all at once; a new version of "rolling"
is loaded, or "net" is loaded again; and one request in twenty loses its client: the connection is
closed in the middle of the request or behind it, or the call is cancelled.

    lost        requests that got an error or no answer, but those whose own client vanished
    wrong       answers that are another request's, another version's, or no one's
    down, up    seconds, the longest: from the end of all workers until readiness says so, and from
                the first answer after that until it does; REST, gRPC and index must agree
    served      seconds, the longest: from ready again to that answer, which waits in the queue
    resident    MiB of the server's process, after a quarter of the time and in the end; and MiB a
                minute, over all but the first quarter
    left        descriptors of the server after the load; after its end processes that it started,
                and files in /dev/shm that it or these have mapped

Exits with status 1 unless nothing is lost, wrong or left, readiness is told within a second, memory
has grown by less than 10 %, and the server ends with status 0. Needs the cpu backend,
plugins/serve, the onnx package and Linux. `--json` for programs.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
from chaos import LARGEST, WIDTH, in_shm, permutation, show
from measure import parser_of

from engine_serve.protocol import SERVICE, message

ANSWER_S = 60.0
CLAIM_S = 1.0
VANISHING = 0.05
GROWTH = 1.1
CONFIG = """
instance_group { count: 2 } parameters { key: "workers" value { string_value: "process" } }
"""
Array = np.ndarray[Any, Any]
Infer, Answer = message("ModelInferRequest"), message("ModelInferResponse")
Ask, Told = message("ModelReadyRequest"), message("ModelReadyResponse")


@dataclass
class Outcome:
    """The outcome of a run."""

    seconds: float
    clients: int
    answered: int
    lost: int
    wrong: int
    vanished: int
    kills: int
    all_killed: int
    reloads: int
    reloads_failed: int
    p50_ms: float
    p99_ms: float
    down_s: float
    up_s: float
    served_s: float
    resident_begin_mib: float
    resident_end_mib: float
    resident_mib_per_minute: float
    left_descriptors: int
    left_processes: int
    left_in_shm: int
    status: int

    @property
    def is_clean(self) -> bool:
        """All claims hold, and something has happened."""
        faults = self.lost, self.wrong, self.status
        left = self.left_descriptors, self.left_processes, self.left_in_shm
        has_happened = self.answered and self.kills and self.all_killed and self.reloads
        return (
            not any((*faults, *left))
            and max(self.down_s, self.up_s) < CLAIM_S
            and self.resident_end_mib < GROWTH * self.resident_begin_mib
            and bool(has_happened and self.vanished)
        )


def scaled(folder: Path, version: int) -> None:
    """Write a version of "rolling"."""
    (folder / str(version)).mkdir(parents=True)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    rolling (float[batch, {WIDTH}] x0) => (float[batch, {WIDTH}] y)
    <float factor = {{{float(version)}}}> {{ y = Mul (x0, factor) }}"""
    onnx.save(onnx.parser.parse_model(text), folder / str(version) / "model.onnx")


class Served:
    """`engine serve` as a process, with all that it starts."""

    def __init__(self, folder: Path) -> None:
        self._mark = uuid.uuid4().hex
        self._log = folder.parent / "log"
        command = [sys.executable, "-m", "engine.cli", "serve", str(folder)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--http-port", "0", "--grpc-port", "0"],
                stderr=log,
                env={**os.environ, "SERVE_CHAOS": self._mark},
            )
        while "ready" not in self.log:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended: {self.log}")
            time.sleep(0.05)
        self.http, self.grpc = (
            f"127.0.0.1:{re.search(rf'{kind}[:/]*127.0.0.1:([0-9]+)', self.log)[1]}"  # type: ignore[index]
            for kind in ("http", "gRPC at ")
        )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def processes(self) -> list[int]:
        """Return what the server has started, and itself."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self._mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def workers(self) -> list[int]:
        """Return the processes that run "net", or are to."""
        found = []
        for pid in self.processes():
            with suppress(OSError):
                if b"engine.workers" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def in_shm(self) -> set[str]:
        """Return the names in /dev/shm that these processes map: other programs have some, too."""
        found: set[str] = set()
        for pid in self.processes():
            with suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                found.update(re.findall(r"/dev/shm/(\S+)$", maps, re.MULTILINE))
        return found

    def resident_mib(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self) -> int:
        """Have the server end; return its status."""
        self.process.terminate()
        return self.process.wait(ANSWER_S)


def rest(address: str) -> HTTPConnection:
    return HTTPConnection(address, timeout=ANSWER_S)


def told(connection: HTTPConnection, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    """Return the status and the content of an answer."""
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


class Client:
    """A client that asks, checks, and vanishes now and then; a subclass has the protocol."""

    def __init__(self, address: str, number: int, place: Array) -> None:
        self.address, self._place = address, place
        self.chance = random.Random(number)
        self._numbers = np.random.default_rng(number)
        self.errors: Counter[str] = Counter()
        self.wrong = self.vanished = 0
        self.latencies: list[float] = []

    def turn(self) -> None:
        """Ask once."""
        name = self.chance.choice(("net", "net", "rolling"))
        rows = self.chance.randint(1, LARGEST)
        x = self._numbers.standard_normal((rows, WIDTH), np.float32)
        if self.chance.random() < VANISHING:
            self.vanished += 1
            self.vanish(name, x)
            return
        begin = time.perf_counter()
        try:
            version, y = self.ask(name, x)
        except Exception as error:  # whatever it is: that request is lost
            self.errors[f"{name}: {type(error).__name__}: {error}"] += 1
            return
        self.latencies.append(time.perf_counter() - begin)
        wanted = x[:, self._place] if name == "net" else x * np.float32(version)
        self.wrong += not np.array_equal(y, wanted)

    def ask(self, name: str, x: Array) -> tuple[str, Array]:
        """Return the version that has answered, and its answer."""
        raise NotImplementedError

    def vanish(self, name: str, x: Array) -> None:
        """Begin a request, and go away."""
        raise NotImplementedError


class Rest(Client):
    """Over HTTP, by one connection."""

    def __init__(self, address: str, number: int, place: Array) -> None:
        super().__init__(address, number, place)
        self._connection = rest(address)

    def _sent(self, x: Array) -> tuple[bytes, dict[str, str]]:
        tensor: dict[str, Any] = {"name": "x0", "shape": x.shape, "datatype": "FP32"}
        tensor["parameters"] = {"binary_data_size": x.nbytes}
        request = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        head = json.dumps(request).encode()
        return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}

    def ask(self, name: str, x: Array) -> tuple[str, Array]:
        body, headers = self._sent(x)
        self._connection.request("POST", f"/v2/models/{name}/infer", body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {content.decode()}")
        length = int(answer.headers["Inference-Header-Content-Length"])
        head = json.loads(content[:length])
        values = np.frombuffer(content, np.float32, offset=length)
        return head["model_version"], values.reshape(head["outputs"][0]["shape"])

    def vanish(self, name: str, x: Array) -> None:
        body, headers = self._sent(x)
        connection = rest(self.address)
        connection.putrequest("POST", f"/v2/models/{name}/infer")
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            connection.putheader(key, value)
        connection.endheaders()
        connection.send(body[: self.chance.choice((0, len(body) // 2, len(body)))])
        time.sleep(self.chance.choice((0, 0.02)))
        connection.close()


class Rpc(Client):
    """Over gRPC, by a channel of its own."""

    def __init__(self, address: str, number: int, place: Array) -> None:
        super().__init__(address, number, place)
        own = [("grpc.use_local_subchannel_pool", 1)]
        self._infer = grpc.insecure_channel(address, own).unary_unary(
            f"/{SERVICE}/ModelInfer", Infer.SerializeToString, Answer.FromString
        )

    def _sent(self, name: str, x: Array) -> Any:
        request = Infer(model_name=name, raw_input_contents=[x.tobytes()])
        request.inputs.add(name="x0", datatype="FP32", shape=x.shape)
        return request

    def ask(self, name: str, x: Array) -> tuple[str, Array]:
        answer = self._infer(self._sent(name, x), timeout=ANSWER_S)
        values = np.frombuffer(answer.raw_output_contents[0], np.float32)
        return answer.model_version, values.reshape(answer.outputs[0].shape)

    def vanish(self, name: str, x: Array) -> None:
        call = self._infer.future(self._sent(name, x), timeout=ANSWER_S)
        time.sleep(self.chance.choice((0, 0.001, 0.02)))
        call.cancel()


class Chaos:
    """Kills workers and reloads models, and notes how soon readiness tells of it."""

    def __init__(self, served: Served, folder: Path, every_s: float) -> None:
        self._served, self._folder, self._every_s = served, folder, every_s
        self._chance = random.Random(0)
        self._changing = threading.Lock()  # workers are counted on
        self._channel = grpc.insecure_channel(served.grpc)
        self._ready = self._channel.unary_unary(
            f"/{SERVICE}/ModelReady", Ask.SerializeToString, Told.FromString
        )
        self.over = threading.Event()
        self.named: set[str] = set()
        self.kills = self.all_killed = self.reloads = self.failed = 0
        self.down_s, self.up_s, self.served_s = [0.0], [0.0], [0.0]
        self.resident = [(0.0, served.resident_mib())]

    def kill(self) -> None:
        """Kill a worker in every interval, and all of them in every eighth."""
        turn = 0
        while not self.over.wait(self._every_s):
            turn += 1
            if turn % 8 == 0:
                with self._changing:
                    self.kill_all()
                continue
            workers = self._served.workers()  # none where the last ones are being replaced
            self.kills += self._ended(self._chance.sample(workers, min(1, len(workers))))

    def _ended(self, workers: list[int]) -> int:
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(workers)

    def kill_all(self) -> None:
        """Kill all workers, and time what is said of them."""
        claims, asking = rest(self._served.http), rest(self._served.http)

        def says() -> set[bool]:
            index = json.loads(told(claims, "POST", "/v2/repository/index")[1])
            [state] = {line["state"] for line in index if line["name"] == "net"}
            return {
                told(claims, "GET", "/v2/models/net/ready")[0] == 200,
                bool(self._ready(Ask(name="net")).ready),
                state == "READY",
            }

        def until(claim: set[bool]) -> float:
            while says() != claim:
                time.sleep(0.005)
            return time.monotonic()

        until({True})
        self.kills += self._ended(self._served.workers())
        self.all_killed += 1
        begin = time.monotonic()
        self.down_s.append(until({False}) - begin)
        answered: list[float] = []

        def ask() -> None:
            values = [0.0] * WIDTH
            tensor = {"name": "x0", "shape": [1, WIDTH], "datatype": "FP32", "data": values}
            request = {"inputs": [tensor], "parameters": {"priority": 1}}
            status, _ = told(asking, "POST", "/v2/models/net/infer", json.dumps(request).encode())
            answered.append(time.monotonic() if status == 200 else 0.0)

        thread = threading.Thread(target=ask)
        thread.start()
        said_s = until({True})
        thread.join()
        self.up_s.append(said_s - answered[0])
        self.served_s.append(answered[0] - said_s)
        claims.close()
        asking.close()

    def reload(self) -> None:
        """Load a new version of "rolling", and "net" again, in turns."""
        version = 1
        while not self.over.wait(3 * self._every_s):
            name = ("rolling", "net")[version % 2]
            version += 1
            if name == "rolling":
                scaled(self._folder / name, version)
            with self._changing:
                connection = rest(self._served.http)  # an idle one may be closed by the server
                path = f"/v2/repository/models/{name}/load"
                status, content = told(connection, "POST", path)
                connection.close()
            self.reloads += status == 200
            if status != 200:  # its workers were killed while they built it
                self.failed += 1
                print(f"{name}: {content.decode()}", file=sys.stderr)

    def measure(self) -> None:
        """Note the server's memory."""
        begin = time.monotonic()
        while not self.over.wait(0.25):
            self.resident.append((time.monotonic() - begin, self._served.resident_mib()))
            self.named |= self._served.in_shm()

    def run(self, seconds: float) -> None:
        """Do all of it for a time. Raises what goes wrong in it."""
        with ThreadPoolExecutor(3) as pool:
            tasks = [pool.submit(work) for work in (self.kill, self.reload, self.measure)]
            time.sleep(seconds)
            self.over.set()
            for task in tasks:
                task.result()
        self._channel.close()


def hammer(clients: list[Client], over: threading.Event) -> list[threading.Thread]:
    """Have each client ask in a thread of its own, until it is over."""

    def work(client: Client) -> None:
        while not over.is_set():
            client.turn()

    threads = [threading.Thread(target=work, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    return threads


def without_models(served: Served, wanted: float = float("inf")) -> int:
    """Return how many descriptors the server has while its models are unloaded.

    wanted: is waited for, for half a minute.
    """

    def change(what: str) -> None:
        for name in ("net", "rolling"):
            assert told(connection, "POST", f"/v2/repository/models/{name}/{what}")[0] == 200

    connection = rest(served.http)
    change("unload")
    until = time.monotonic() + 30
    while (found := served.descriptors()) > wanted and time.monotonic() < until:
        time.sleep(0.1)
    change("load")
    connection.close()
    return found


def run(folder: Path, seconds: float, every_s: float, count: int) -> Outcome:
    """Run it all, in an empty folder."""
    models = folder / "models"
    (models / "net/1").mkdir(parents=True)
    place = permutation(models / "net/1/model.onnx")
    (models / "net/config.pbtxt").write_text(CONFIG)
    scaled(models / "rolling", 1)
    served = Served(models)
    kinds = (Rest, served.http), (Rpc, served.grpc)
    clients: list[Client] = [
        kind(address, number, place)
        for number in range(count)
        for kind, address in [kinds[number % 2]]
    ]
    before = without_models(served)
    chaos = Chaos(served, models, every_s)
    threads = hammer(clients, chaos.over)
    chaos.run(seconds)
    stuck = 0
    for thread in threads:
        thread.join(2 * ANSWER_S)
        stuck += thread.is_alive()
    latencies = [latency for client in clients for latency in client.latencies]
    errors = sum((client.errors for client in clients), Counter[str]({"no answer": stuck}))
    wrong, vanished = (sum(counts) for counts in zip(*((c.wrong, c.vanished) for c in clients)))
    clients.clear()
    left_descriptors = max(0, without_models(served, before) - before)
    status = served.end()
    for error, times in (+errors).items():
        print(f"{times} x {error}", file=sys.stderr)
    if status:
        print(served.log, file=sys.stderr)
    times_s, mib = np.array(chaos.resident[len(chaos.resident) // 4 :]).T
    tenth = max(1, len(mib) // 10)
    p50, p99 = np.percentile(latencies, (50, 99)) * 1e3 if latencies else (0, 0)
    return Outcome(
        seconds,
        count,
        len(latencies),
        errors.total(),
        wrong,
        vanished,
        chaos.kills,
        chaos.all_killed,
        chaos.reloads,
        chaos.failed,
        float(p50),
        float(p99),
        max(chaos.down_s),
        max(chaos.up_s),
        max(chaos.served_s),
        statistics.median(mib[:tenth].tolist()),
        statistics.median(mib[-tenth:].tolist()),
        float(np.polyfit(times_s, mib, 1)[0]) * 60,
        left_descriptors,
        len(served.processes()),
        len(chaos.named & in_shm()),
        status,
    )


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two SIGKILLs")
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = run(Path(name), given.seconds, given.every, given.clients)
    show(found, "all claims hold", as_json=given.json)
    sys.exit(not found.is_clean)


if __name__ == "__main__":
    main()
