"""`engine serve`: serves models by the Open Inference Protocol."""

from __future__ import annotations

import logging
import signal
import threading

import click

from engine_serve.building import builder
from engine_serve.folder import sources
from engine_serve.logs import to_stderr
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
  1  a model could not be loaded, or a port not be had"""


@click.command("serve", epilog=EPILOG)
@click.argument("models", nargs=-1, required=True, metavar="MODEL... | FOLDER")
@click.option("--host", default="127.0.0.1", metavar="ADDR", help="The address to listen at.")
@click.option("--http-port", default=8000, type=click.IntRange(0, 65535), help="Port for REST.")
@click.option("--target", default="cpu", metavar="TARGET", help="Where to run, as engine run.")
def serve(models: tuple[str, ...], host: str, http_port: int, target: str) -> None:
    """Serve models by the Open Inference Protocol, over REST and gRPC."""
    to_stderr()
    log = logging.getLogger("engine_serve")
    repository = Repository(sources(models), builder(target.split(",")))
    server = Server(repository, Settings(host=host, http_port=http_port))
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    server.start()
    log.info("REST at http://%s:%s", host, server.http_port)
    for name in repository.names:
        repository.load(name)
    log.info("ready")
    over.wait()
    server.stop()
    repository.close()
