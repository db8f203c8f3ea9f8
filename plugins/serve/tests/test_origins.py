"""Pages of other sites that a user's browser shows reach no server of that user."""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path

import pytest
from serve_ways import Served, scaled, served

from engine.errors import SettingError
from engine_serve.folder import Sources
from engine_serve.origins import is_loopback


def status(server: Served, path: str = "/v2", method: str = "GET", **headers: str) -> int:
    """Return the status of an answer to a request with these headers alone."""
    connection = HTTPConnection(server.http, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    try:
        return connection.getresponse().status
    finally:
        connection.close()


UNLOAD = "/v2/repository/models/affine/unload"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_a_page_of_another_site_cannot_change_models(affine: Served, origin: str) -> None:
    assert status(affine, UNLOAD, "POST", Origin=origin) == 403
    assert status(affine, "/v2/models/affine/ready") == 200


def test_the_servers_own_page_and_plain_clients_are_answered(affine: Served) -> None:
    assert status(affine, Origin=f"http://{affine.http}") == 200
    assert status(affine) == 200
    port = affine.http.partition(":")[2]
    for host in (f"localhost:{port}", "LOCALHOST", f"[::1]:{port}", "127.0.0.1", "a.localhost"):
        assert status(affine, Host=host) == 200, host


def test_a_site_that_gives_its_name_this_address_reads_nothing(affine: Served) -> None:
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example"):
        assert status(affine, Host=host) == 403, host


def test_names_that_are_allowed_are_answered(tmp_path: Path) -> None:
    model = scaled(tmp_path / "affine.onnx", 2.0)
    with served(model, allowed_hosts=("models.example",)) as server:
        assert status(server, Host="models.example") == 200
        assert status(server, Origin="https://models.example") == 200
        assert status(server, Host="evil.example") == 403


def test_a_server_for_others_may_have_any_name(tmp_path: Path) -> None:
    model = scaled(tmp_path / "affine.onnx", 2.0)
    with served(model, host="0.0.0.0") as server:
        assert status(server, Host="models.example") == 200
        assert status(server, Origin="https://evil.example") == 403
    with served(model, token="t") as server:
        assert status(server, Host="models.example", Authorization="Bearer t") == 200


def test_addresses_of_this_host_alone_are_known() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [
        True
    ] * 4
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


def test_a_name_with_a_slash_is_refused(tmp_path: Path) -> None:
    model = scaled(tmp_path / "affine.onnx", 2.0)
    with pytest.raises(SettingError, match="cannot be named 'a/b': a slash ends a name"):
        Sources([f"a/b={model}"])
