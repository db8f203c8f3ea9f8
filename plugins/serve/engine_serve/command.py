"""`engine serve`: serves models by the Open Inference Protocol."""

from __future__ import annotations

import gc
import logging
import os
import ssl
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import click

from engine.errors import Cancelled, SettingError
from engine.types import CancelToken
from engine_serve import __version__
from engine_serve.building import builder
from engine_serve.folder import Sources
from engine_serve.logs import to_stderr
from engine_serve.origins import is_loopback
from engine_serve.polling import Polling
from engine_serve.repository import Repository
from engine_serve.runners import Running
from engine_serve.server import Server, Settings
from engine_serve.signals import Signals
from engine_serve.uploads import Uploads

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
     still ran when the time of --drain was over
  2  wrong usage"""

_CLOSE_S = 5.0  # for runners, whose requests have ended
_SAME_S = 1.0  # `timeout` and some others send a signal twice: that is one
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
    "--processes",
    default=0,
    type=click.IntRange(0, 64),
    help="Worker processes for each model; 0 runs models in the server's process.",
)
@click.option(
    "--queue-limit",
    default=1000,
    type=click.IntRange(1),
    help="How many requests of a model may wait; more are refused.",
)
@click.option(
    "--highest-priority",
    default=1,
    type=click.IntRange(1, 201),
    metavar="LEVEL",
    help="The highest priority that clients may ask for; 1 is the highest that there is.",
)
@click.option(
    "--max-request-mib", default=64, type=click.IntRange(1, 2047), help="The largest request."
)
@click.option(
    "--max-requests-mib",
    default=1024,
    type=click.IntRange(1),
    help="The bodies of all requests of REST that are here at once.",
)
@click.option(
    "--max-connections",
    "connections",
    default=1000,
    type=click.IntRange(1),
    help="Connections of REST at once, and calls of gRPC.",
)
@click.option(
    "--grpc-connection-age",
    default=None,
    type=_SECONDS,
    metavar="S",
    help="Seconds after which clients of gRPC connect anew, so that new replicas get their share.",
)
@click.option(
    "--read-timeout",
    "pause_s",
    default=10.0,
    type=_SECONDS,
    metavar="S",
    help="Seconds for the handshake of TLS, for a request's headers, for each next part of its "
    "body, and for a client to take more of its answer.",
)
@click.option(
    "--transfer-timeout",
    "transfer_s",
    default=120.0,
    type=_SECONDS,
    metavar="S",
    help="Seconds for a whole request to come, and for a whole answer to be taken.",
)
@click.option(
    "--keep-alive",
    "idle_s",
    default=75,
    type=click.IntRange(1, 86400),
    metavar="S",
    help="Seconds for which REST's connections stay without a request.",
)
@click.option(
    "--stream-idle",
    "stream_idle_s",
    default=3600.0,
    type=_SECONDS,
    metavar="S",
    help="Seconds for which a stream of inferences over gRPC stays without a request.",
)
@click.option(
    "--grpc-keepalive",
    "keepalive_s",
    default=60.0,
    type=_SECONDS,
    metavar="S",
    help="Seconds after which a silent client of gRPC is asked whether it is still there.",
)
@click.option(
    "--drain",
    "drain_s",
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
    "may_change",
    default=True,
    help="Let clients load and unload models.",
)
@click.option(
    "--allow-uploads",
    default=0,
    type=click.IntRange(0),
    metavar="MIB",
    help="Let clients send the files of models with a load; MiB of all of them together.",
)
@click.option(
    "--poll",
    default=None,
    type=_SECONDS,
    metavar="S",
    help="Seconds between two looks for new and changed models, which are then loaded.",
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
    processes: int,
    queue_limit: int,
    highest_priority: int,
    max_request_mib: int,
    max_requests_mib: int,
    grpc_connection_age: float | None,
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    shared_memory: bool | None,
    allow_uploads: int,
    poll: float | None,
    no_page: bool,
    as_json: bool,
    may_change: bool,
    **same: Any,  # of Settings, by its own names
) -> None:
    """Serve models by the Open Inference Protocol, over REST and gRPC."""
    if no_http and no_grpc:
        raise click.UsageError("--no-http and --no-grpc leave nothing to serve")
    if bool(tls_cert) != bool(tls_key):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if tls_cert and tls_key:
        check_pair(tls_cert, tls_key)
    to_stderr(json_lines=as_json)
    is_local = is_loopback(host)
    settings = Settings(
        host=host,
        http_port=None if no_http else http_port,
        grpc_port=None if no_grpc else grpc_port,
        most_bytes=max_request_mib << 20,
        most_bytes_together=max_requests_mib << 20,
        connection_age_s=grpc_connection_age or 0.0,
        token=token_of(token_file) if token_file else "",
        certificate=tls_cert or "",
        key=tls_key or "",
        shares_memory=is_local if shared_memory is None else shared_memory,
        may_change=may_change,
        has_page=not no_page,
        **same,
    )
    if not is_local and not settings.token:
        _log.warning("whoever reaches %s may use the models; --token-file asks for a token", host)
    cancel = CancelToken()
    running = Running(
        target=target.split(","),
        config_path=config or "",
        queue_limit=queue_limit,
        processes=processes,
        highest_level=highest_priority,
        cancel=cancel,
    )
    running.context()  # a wrong option is refused before anything listens
    uploads = Uploads(allow_uploads << 20)
    repository = Repository(Sources(models), builder(running), uploads, may_change=may_change)
    run(repository, settings, cancel, poll)


def run(
    repository: Repository, settings: Settings, cancel: CancelToken, poll_s: float | None = None
) -> None:
    """Serve until a signal comes. cancel: ends the build of a model. poll_s: see Polling.

    Raises SettingError; SystemExit(1) where a model cannot be loaded, which the log says, and where
    requests did not end.
    """
    signals = Signals()
    server = Server(repository, settings)
    server.start()
    failures: list[BaseException] = []

    def load() -> None:
        polling = Polling(repository) if poll_s else None
        try:
            for name in repository.names:
                repository.load(name)
        except BaseException as error:
            failures.append(error)
            signals.wake()
        else:
            gc.collect()
            gc.freeze()  # what is loaded stays: no collection has to look at it
            _log.info("ready")
            if polling is not None and poll_s:
                polling.run(poll_s, cancel)

    _log.info("inference-engine %s: %s", __version__, server)
    _in_thread(load)
    signals.wait()
    begin_s = time.monotonic()
    if not failures:
        _log.info("ending: %s s for requests that run", settings.drain_s)
    cancel.cancel()
    is_closed: Future[bool] = Future()

    def end() -> None:
        try:
            server.stop()
            closing = _in_thread(repository.close)
            closing.join(_CLOSE_S)
            is_closed.set_result(not closing.is_alive())
        except BaseException as error:
            is_closed.set_exception(error)
        signals.wake()

    _in_thread(end)
    while not is_closed.done():
        if (number := signals.wait()) and time.monotonic() - begin_s > _SAME_S:
            os._exit(128 + number)
    if not is_closed.result():
        _log.error("requests still run; they are dropped")
        sys.stderr.flush()
        os._exit(1)  # Python cannot end around a run
    _log.info("ended")
    if failures and not isinstance(failures[0], Cancelled):
        sys.exit(1)


def _in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def check_pair(certificate: str, key: str) -> None:
    """Refuse files that are not a certificate and its key. Raises SettingError."""
    try:  # a password, so that nobody is asked for one
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise SettingError(
            f"--tls-cert {certificate}, --tls-key {key}: expected a certificate and its key, PEM, "
            f"without a password: {error}"
        ) from error


def token_of(path: str) -> str:
    """Return the token in a file. Raises SettingError."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--token-file {path}: cannot be read: {error}") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingError(f"--token-file {path}: expected one word of ASCII, the token")
    return token
