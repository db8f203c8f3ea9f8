"""The files of examples/serving and their page: read, checked and run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from serve_process import Process, process
from serve_ways import X, ask_raw, infer, scaled, tensor

import engine
from engine_serve import command
from engine_serve.server import Settings

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/serving"
PAGE = ROOT / "docs/server_deployment.md"
DIGITS = ROOT / "examples/digits/digits.onnx"
CLOSING_S = Settings.settle_s + command._CLOSE_S


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def of_kind(name: str, kind: str) -> Any:
    return next(document for document in documents(name) if document["kind"] == kind)


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile."""
    text = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


def listed(key: str) -> list[str]:
    """Return the words of the Dockerfile's last ENTRYPOINT or CMD."""
    return json.loads([rest for name, rest in instructions() if name == key][-1])


def unit(key: str) -> str:
    [found] = re.findall(rf"^{key}=(.*)", (FOLDER / "engine-serve.service").read_text(), re.M)
    return found


DEPLOYED = of_kind("kubernetes.yaml", "Deployment")["spec"]["template"]["spec"]
KSERVE = of_kind("kserve-runtime.yaml", "ClusterServingRuntime")["spec"]
PODS = {"kubernetes": DEPLOYED["containers"][0], "kserve": KSERVE["containers"][0]}
ARGUMENTS = {
    "docker": [*listed("ENTRYPOINT"), *listed("CMD")],
    "systemd": shlex.split(unit("ExecStart")),
    **{name: [*listed("ENTRYPOINT"), *pod["args"]] for name, pod in PODS.items()},
}


def parsed(name: str) -> dict[str, Any]:
    """Return the values that `engine serve` reads in a file's command. Raises UsageError."""
    words = ARGUMENTS[name]
    assert [Path(words[0]).name, words[1]] == ["engine", "serve"]
    return click.Command.make_context(command.serve, "serve", words[2:]).params


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with process(scaled(tmp_path_factory.mktemp("models") / "net.onnx", 2)) as found:
        infer(found.http, "net", tensor(X))
        yield found


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_options_of_a_file_are_those_of_the_server(name: str) -> None:
    found = parsed(name)
    assert found["models"]
    assert found["as_json"]
    if name != "systemd":
        assert found["host"] == "0.0.0.0"


def test_the_options_that_the_page_names_are_those_of_the_server() -> None:
    named = {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE.read_text())}
    others = {"--rm", "--cpus", "--read-only", "--app-dir", "--config", "--now"}
    options = {
        option for each in command.serve.params for option in (*each.opts, *each.secondary_opts)
    }
    assert named - others - options == set()
    assert len(named & options) > 10


def test_the_page_names_each_file() -> None:
    named = re.findall(r"\(\.\./examples/serving/([^)]+)\)", PAGE.read_text())
    ignored = {"Dockerfile.dockerignore"}
    assert {*named} | ignored == {path.name for path in FOLDER.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", PODS)
def test_ports_and_probes_are_those_of_the_server(name: str, server: Process) -> None:
    options, pod = parsed(name), PODS[name]
    ports = {port["name"]: port["containerPort"] for port in pod.get("ports", ())}
    if ports:
        assert ports == {"http": options["http_port"], "grpc": options["grpc_port"]}
    for key in ("livenessProbe", "readinessProbe"):
        if key in pod:
            probe = pod[key]["httpGet"]
            assert ports.get(probe["port"], probe["port"]) == options["http_port"]
            assert ask_raw(server.http, "GET", probe["path"])[0] == 200
    assert "readinessProbe" in pod


def test_the_ports_of_the_service_and_of_the_image_are_those_of_the_server() -> None:
    options = parsed("docker")
    wanted = {options["http_port"], options["grpc_port"]}
    service = of_kind("kubernetes.yaml", "Service")["spec"]
    assert {port["port"] for port in service["ports"]} == wanted
    names = {port["name"] for port in PODS["kubernetes"]["ports"]}
    assert {port["targetPort"] for port in service["ports"]} == names
    [exposed] = [rest for name, rest in instructions() if name == "EXPOSE"]
    assert {*map(int, exposed.split())} == wanted


def test_what_kserve_is_told_of_ports_and_protocols_is_so(server: Process) -> None:
    options, told = parsed("kserve"), KSERVE["annotations"]
    assert told["prometheus.kserve.io/port"] == str(options["http_port"])
    assert ask_raw(server.http, "GET", told["prometheus.kserve.io/path"])[0] == 200
    for service in (
        each for each in documents("kserve-runtime.yaml") if each["kind"] == "InferenceService"
    ):
        model = service["spec"]["predictor"]["model"]
        assert model["protocolVersion"] in KSERVE["protocolVersions"]
        assert model["modelFormat"]["name"] in [
            each["name"] for each in KSERVE["supportedModelFormats"]
        ]
        for port in model.get("ports", ()):
            assert port["containerPort"] == options["grpc_port"]


def test_supervisors_wait_longer_than_the_server_takes_to_end() -> None:
    options = parsed("kubernetes")
    delay_s = PODS["kubernetes"]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert delay_s > 1.1 * options["grpc_connection_age"]  # grpc takes up to a tenth more
    assert DEPLOYED["terminationGracePeriodSeconds"] > delay_s + options["drain_s"] + CLOSING_S
    assert float(unit("TimeoutStopSec")) > parsed("systemd")["drain_s"] + CLOSING_S
    assert f"`--drain` + {CLOSING_S:g} s" in PAGE.read_text()


def test_metrics_are_those_that_the_server_has(server: Process) -> None:
    text = ask_raw(server.http, "GET", "/metrics")[1].decode()
    told = {*re.findall(r"^(nv_\w+)", text, re.M)}
    [rule] = documents("prometheus-adapter.yaml")[0]["rules"]
    made = rule["name"]["as"]
    named = {*re.findall(r"nv_\w+", "".join(path.read_text() for path in FOLDER.glob("*.y*ml")))}
    assert named - told == {made}
    [metric] = of_kind("kubernetes.yaml", "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == made


def test_prometheus_scrapes_what_is_there(server: Process) -> None:
    [file] = documents("prometheus.yml")
    names = {port["name"] for port in PODS["kubernetes"]["ports"]}
    app = of_kind("kubernetes.yaml", "Deployment")["spec"]["template"]["metadata"]["labels"]["app"]
    labels = set()
    for job in file["scrape_configs"]:
        assert ask_raw(server.http, "GET", job["metrics_path"])[0] == 200
        for config in job.get("static_configs", ()):
            assert config["targets"] == [f"127.0.0.1:{parsed('systemd')['http_port']}"]
        for rule in job.get("relabel_configs", ()):
            labels.add(rule.get("target_label"))
            if rule.get("action") == "keep":
                assert rule["regex"].split(";")[0] == app
                assert rule["regex"].split(";")[1] in names
    [adapter] = documents("prometheus-adapter.yaml")[0]["rules"]
    assert {*adapter["resources"]["overrides"]} <= labels


@pytest.mark.parametrize("document", documents("kubernetes.yaml"), ids=lambda each: each["kind"])
def test_kubernetes_would_take_the_file(document: Any) -> None:
    reason = "kubernetes-validate is not installed: tox -e clients"
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=reason)
    for version in ("1.30", "1.36"):
        kubernetes_validate.validate(document, version, strict=True)


def test_systemd_would_take_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    text = (FOLDER / "engine-serve.service").read_text()
    installed = Path(sys.executable).parent / "engine"
    path = tmp_path / "engine-serve.service"
    path.write_text(text.replace("/opt/engine/bin/engine", str(installed)))
    done = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_commands_of_the_dockerfile_make_a_server(tmp_path: Path) -> None:
    """Without docker: in folders of this machine, by its Python."""
    places = {
        "/src/": f"{tmp_path}/src/",
        "/opt/engine": f"{tmp_path}/opt",
        '"/src[': f'"{tmp_path}/src[',
    }
    here = re.compile("|".join(map(re.escape, places)))

    def inside(text: str) -> str:
        return here.sub(lambda found: places[found[0]], text)

    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            for source in sources:
                place = Path(inside(target if target.endswith("/") else f"{target}/"))
                if (ROOT / source).is_dir():
                    skipped = shutil.ignore_patterns("__pycache__", "tests")
                    shutil.copytree(ROOT / source, place, ignore=skipped)
                else:
                    place.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / source, place)
        elif name == "RUN":
            subprocess.run(
                inside(rest), shell=True, check=True, env=environment, stdout=subprocess.DEVNULL
            )
        elif name == "ENV":
            words = [word.split("=", 1) for word in shlex.split(inside(rest))]
            environment |= {key: os.path.expandvars(value) for key, value in words}
    (tmp_path / "models").mkdir()
    shutil.copy(DIGITS, tmp_path / "models")
    words = [
        str(tmp_path / "models") if word == "/models" else word for word in ARGUMENTS["docker"]
    ]
    [check] = [rest.partition("CMD ")[2] for name, rest in instructions() if name == "HEALTHCHECK"]
    program = [f"{tmp_path}/opt/bin/engine"]
    with process(*words[2:], program=program, environment=environment) as found:
        port = found.http.rpartition(":")[2]
        probe = [word.replace(":8000", f":{port}") for word in json.loads(check)]
        subprocess.run(probe, check=True, env=environment)
        image = tensor(np.zeros((1, 1, 8, 8), np.float32), name="image")
        assert infer(f"127.0.0.1:{port}", "digits", image)[0] == 200
        assert found.end()[0] == 0
    assert subprocess.run(probe, check=False, env=environment, stderr=subprocess.DEVNULL).returncode


RAY = """
import json, socket, sys, urllib.request, ray
from ray import serve
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": port})
from ray_serve import app
serve.run(app, route_prefix="/")
with urllib.request.urlopen(f"http://127.0.0.1:{port}/", sys.stdin.buffer.read()) as answer:
    print("answer:", answer.read().decode())
serve.shutdown()
ray.shutdown()
"""


@pytest.mark.slow
def test_the_deployment_of_ray_serve_answers_as_the_model_does() -> None:
    pytest.importorskip("ray.serve", reason="ray[serve] is not installed: tox -e clients")
    image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    own = {"PYTHONPATH": str(FOLDER), "MODEL": str(DIGITS), "RAY_USAGE_STATS_ENABLED": "0"}
    own["RAY_AUTH_MODE"] = "disabled"  # its token would be a file in the user's home
    command = [sys.executable, "-c", RAY]
    body = json.dumps({"image": image.tolist()}).encode()
    done = subprocess.run(
        command, input=body, capture_output=True, timeout=300, env=os.environ | own, check=False
    )
    found = re.search(rb"^answer: (.*)", done.stdout, re.M)
    assert found, done.stderr.decode()
    with engine.load(str(DIGITS)) as model:
        wanted = {each.name: each.get_data_to_numpy() for each in model.predict([image])}
    answer = json.loads(found[1])
    assert {*answer} == {*wanted}
    for name, value in wanted.items():
        np.testing.assert_allclose(answer[name], value, rtol=1e-6)
