"""`engine serve`: serves models by the Open Inference Protocol."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click

from engine.errors import Cancelled, SettingError
from engine.types import CancelToken
from engine_serve.building import builder
from engine_serve.folder import sources
from engine_serve.logs import to_stderr
from engine_serve.origins import is_loopback
from engine_serve.repository import Repository
from engine_serve.server import Server, Settings

EPILOG = """\b
Examples:
  engine serve net.onnx
  engine serve detector=a.onnx reader=b.onnx --http-port 9000
  engine serve models --host 0.0.0.0 --token-file token

\b
FOLDER has models as files, or in Triton's layout:
  FOLDER/NAME/config.pbtxt      (may be left out)
  FOLDER/NAME/1/model.onnx

\b
Exit status:
  0  ended by SIGTERM or SIGINT, and every request was answered
  1  a model could not be loaded, a port could not be had, or requests
     still ran when the time of --drain was over"""

_CLOSE_S = 5.0  # for runners, whose requests have ended
_log = logging.getLogger("engine_serve")
_PORT = click.IntRange(0, 65535)
_SECONDS = click.FloatRange(0, 86400, min_open=True)


@click.command("serve", epilog=EPILOG)
@click.argument("models", nargs=-1, required=True, metavar="MODEL... | FOLDER")
@click.option("--host", default="127.0.0.1", metavar="ADDR", help="The address to listen at.")
@click.option("--http-port", default=8000, type=_PORT, help="The port for REST; 0 for a free one.")
@click.option("--grpc-port", default=8001, type=_PORT, help="The port for gRPC; 0 for a free one.")
@click.option("--no-http", is_flag=True, help="Serve no REST.")
@click.option("--no-grpc", is_flag=True, help="Serve no gRPC.")
@click.option("--target", default="cpu", metavar="TARGET", help="Where to run, as engine run.")
@click.option(
    "--config", type=click.Path(), metavar="FILE", help="A configuration file for all models."
)
@click.option(
    "--queue-limit",
    default=1000,
    type=click.IntRange(1),
    help="How many requests of a model may wait; more are refused.",
)
@click.option(
    "--max-request-mib", default=64, type=click.IntRange(1, 2047), help="The largest request."
)
@click.option("--max-connections", default=1000, type=click.IntRange(1), help="REST's at once.")
@click.option(
    "--read-timeout",
    default=10.0,
    type=_SECONDS,
    metavar="S",
    help="Seconds for a request's headers, and for each next part of its body.",
)
@click.option(
    "--drain",
    default=30.0,
    type=_SECONDS,
    metavar="S",
    help="Seconds for requests that run when the server is to end.",
)
@click.option(
    "--token-file", type=click.Path(), metavar="FILE", help="Clients must show the token in FILE."
)
@click.option("--tls-cert", type=click.Path(), metavar="FILE", help="A certificate, PEM.")
@click.option("--tls-key", type=click.Path(), metavar="FILE", help="Its key, PEM.")
@click.option(
    "--shared-memory/--no-shared-memory",
    default=None,
    help="Let clients register shared memory of this host.  [default: on at loopback]",
)
@click.option(
    "--model-control/--no-model-control",
    default=True,
    help="Let clients load and unload models.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name that browsers may know the server by, as behind a proxy. May be repeated.",
)
@click.option("--no-page", is_flag=True, help="Show no page to browsers at /.")
@click.option("--json", "as_json", is_flag=True, help="Log lines of JSON.")
def serve(
    models: tuple[str, ...],
    host: str,
    http_port: int,
    grpc_port: int,
    no_http: bool,
    no_grpc: bool,
    target: str,
    config: str | None,
    queue_limit: int,
    max_request_mib: int,
    max_connections: int,
    read_timeout: float,
    drain: float,
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    shared_memory: bool | None,
    model_control: bool,
    allowed_hosts: tuple[str, ...],
    no_page: bool,
    as_json: bool,
) -> None:
    """Serve models by the Open Inference Protocol, over REST and gRPC."""
    if no_http and no_grpc:
        raise click.UsageError("--no-http and --no-grpc leave nothing to serve")
    if bool(tls_cert) != bool(tls_key):
        raise click.UsageError("--tls-cert and --tls-key go together")
    to_stderr(json_lines=as_json)
    is_local = is_loopback(host)
    settings = Settings(
        host=host,
        http_port=None if no_http else http_port,
        grpc_port=None if no_grpc else grpc_port,
        most_bytes=max_request_mib << 20,
        read_s=read_timeout,
        connections=max_connections,
        drain_s=drain,
        token=token_of(token_file) if token_file else "",
        certificate=tls_cert or "",
        key=tls_key or "",
        shares_memory=is_local if shared_memory is None else shared_memory,
        may_change=model_control,
        has_page=not no_page,
        allowed_hosts=allowed_hosts,
    )
    if not is_local and not settings.token:
        _log.warning("whoever reaches %s may use the models; --token-file asks for a token", host)
    cancel = CancelToken()
    build = builder(target.split(","), config or "", queue_limit, cancel)
    run(Repository(sources(models), build), settings, cancel)


def run(repository: Repository, settings: Settings, cancel: CancelToken) -> None:
    """Serve until a signal comes. cancel: ends the build of a model.

    Raises SettingError, and what loading raises; SystemExit(1) where requests did not end.
    """
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    server = Server(repository, settings)
    server.start()
    failures: list[BaseException] = []

    def load() -> None:
        try:
            for name in repository.names:
                repository.load(name)
        except BaseException as error:
            failures.append(error)
            over.set()
        else:
            _log.info("ready")

    _log.info("%s", server)
    _in_thread(load)
    over.wait()
    for number in (signal.SIGINT, signal.SIGTERM):  # the next one ends at once
        signal.signal(number, lambda number, _: os._exit(128 + number))
    if not failures:
        _log.info("ending: %s s for requests that run", settings.drain_s)
    cancel.cancel()
    server.stop()
    closing = _in_thread(repository.close)
    closing.join(_CLOSE_S)
    if closing.is_alive():
        _log.error("requests still run; they are dropped")
        sys.stderr.flush()
        os._exit(1)  # Python cannot end around a run
    if failures and not isinstance(failures[0], Cancelled):
        raise failures[0]


def _in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def token_of(path: str) -> str:
    """Return the token in a file. Raises SettingError."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--token-file {path}: cannot be read: {error}") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingError(f"--token-file {path}: expected one word of ASCII, the token")
    return token
