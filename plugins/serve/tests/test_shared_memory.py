"""Shared memory of this host: registered, read, written, and never trusted."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as rest
from serve_ways import Served, X, ask, served
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from engine_serve.loaded import LoadedModel
from engine_testing import models

CONTENT = X.tobytes().ljust(4096, b"\0")


@contextmanager
def shared_object() -> Iterator[str]:
    """Yield the key of an object that has CONTENT."""
    found = f"/engine-serve-{uuid.uuid4().hex}"
    path = Path(f"/dev/shm{found}")
    path.write_bytes(CONTENT)
    try:
        yield found
    finally:
        path.unlink()


@pytest.fixture
def key() -> Iterator[str]:
    with shared_object() as found:
        yield found


@pytest.mark.parametrize("client", [rest, rpc], ids=["http", "grpc"])
def test_inputs_and_outputs_lie_in_tritons_regions(affine: Served, client: ModuleType) -> None:
    name = f"engine-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(name, f"/{name}", 256)
    connection = client.InferenceServerClient(affine.http if client is rest else affine.grpc)
    try:
        shm.set_shared_memory_region(handle, [X])
        connection.register_system_shared_memory(name, f"/{name}", 256)
        given = client.InferInput("x", X.shape, "FP32")
        given.set_shared_memory(name, X.nbytes)
        wanted = client.InferRequestedOutput("y")
        wanted.set_shared_memory(name, 64, offset=64)
        result = connection.infer("affine", [given], outputs=[wanted])
        found = shm.get_contents_as_numpy(handle, np.float32, [2, 3], offset=64)
        np.testing.assert_array_equal(found, 2 * X + 1)
        assert result.get_output("y") is not None
        assert name in str(connection.get_system_shared_memory_status())
        connection.unregister_system_shared_memory(name)
        assert name not in str(connection.get_system_shared_memory_status())
        with pytest.raises(InferenceServerException, match=f"there is no region '{name}'"):
            connection.infer("affine", [given])
    finally:
        connection.close()
        shm.destroy_shared_memory_region(handle)


def register(
    affine: Served, key: object, size: object = 4096, offset: object = 0
) -> tuple[int, object]:
    body = {"key": key, "offset": offset, "byte_size": size}
    return ask(affine.http, "POST", "/v2/systemsharedmemory/region/r/register", body)


def unregister(affine: Served) -> None:
    assert ask(affine.http, "POST", "/v2/systemsharedmemory/unregister")[0] == 200


def place(region: str, nbytes: int, offset: int = 0) -> dict[str, object]:
    return {
        "shared_memory_region": region,
        "shared_memory_byte_size": nbytes,
        "shared_memory_offset": offset,
    }


def infer_from(affine: Served, parameters: dict[str, object]) -> tuple[int, dict[str, object]]:
    given = {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": parameters}
    return ask(affine.http, "POST", "/v2/models/affine/infer", {"inputs": [given]})


@pytest.fixture
def region(affine: Served, key: str) -> Iterator[str]:
    assert register(affine, key)[0] == 200
    yield "r"
    unregister(affine)


@pytest.mark.parametrize(
    "wrong",
    ["/../etc/passwd", "../x", "", "/", ".", "/a/b", "/nothing-of-that-name", "/a\0b", 3],
)
def test_a_key_is_the_name_of_shared_memory_and_no_path(affine: Served, wrong: object) -> None:
    status, found = register(affine, wrong)
    assert status == 400, found


def test_a_link_is_not_followed(affine: Served, key: str) -> None:
    path = Path(f"/dev/shm{key}-link")
    path.symlink_to("/etc/passwd")
    try:
        assert register(affine, f"{key}-link", 10)[0] == 400
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("size", "offset"), [(4097, 0), (1, 4096), (0, 0), (-1, 0), (10, -1), ("1", 0)]
)
def test_a_region_lies_inside_its_object(
    affine: Served, key: str, size: object, offset: object
) -> None:
    assert register(affine, key, size, offset)[0] == 400


def test_a_name_is_registered_once(affine: Served, key: str, region: str) -> None:
    status, found = register(affine, key)
    assert (status, found["error"]) == (
        400,
        "region 'r' is registered already; unregister it first",
    )


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (place("r", 20), "FP32[2, 3] takes 24 bytes, got 20"),
        (place("r", 24, 4090), "region 'r' has 4096 bytes, got 24 at offset 4090"),
        (place("r", 24, -4), "must be 0 or more"),
        (place("r", 2**62), "region 'r' has 4096 bytes"),
        ({"shared_memory_region": "r"}, "'shared_memory_byte_size', in bytes; got 'r' and None"),
        ({"shared_memory_byte_size": 24}, "got None and 24"),
    ],
)
def test_a_place_lies_inside_its_region(
    affine: Served, region: str, parameters: dict[str, object], text: str
) -> None:
    status, found = infer_from(affine, parameters)
    assert status == 400
    assert text in found["error"]


def test_a_region_that_its_client_has_shrunk_is_an_error_and_no_crash(
    affine: Served, key: str, region: str
) -> None:
    assert infer_from(affine, place("r", 24))[0] == 200
    os.truncate(f"/dev/shm{key}", 8)
    status, found = infer_from(affine, place("r", 24))
    assert (status, found["error"]) == (400, "tensor 'x': region 'r' is shorter than registered")
    assert ask(affine.http, "GET", "/v2/health/live")[0] == 200


def test_a_place_that_is_too_small_for_its_output_is_an_error(affine: Served, region: str) -> None:
    body = {
        "inputs": [
            {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": place("r", 24)}
        ],
        "outputs": [{"name": "y", "parameters": place("r", 20, 64)}],
    }
    status, found = ask(affine.http, "POST", "/v2/models/affine/infer", body)
    assert status == 400
    assert found["error"] == "output 'y' has 24 bytes, but its place in region 'r' has 20"


@pytest.mark.parametrize("is_other", [True, False], ids=["another object", "the same object"])
@pytest.mark.parametrize("client", [rest, rpc], ids=["http", "grpc"])
def test_an_output_is_never_written_to_a_region_that_has_got_its_regions_name(
    affine: Served, client: ModuleType, is_other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, may_end, infer = threading.Event(), threading.Event(), LoadedModel.infer

    async def held(*arguments: Any) -> Any:
        runs.set()
        await asyncio.to_thread(may_end.wait, 60)
        return await infer(*arguments)

    monkeypatch.setattr(LoadedModel, "infer", held)

    def ask_for_y() -> None:
        connection = client.InferenceServerClient(affine.http if client is rest else affine.grpc)
        given = client.InferInput("x", X.shape, "FP32")
        given.set_data_from_numpy(X)
        wanted = client.InferRequestedOutput("y")
        wanted.set_shared_memory("r", 24, offset=64)
        with closing(connection), pytest.raises(InferenceServerException) as raised:
            connection.infer("affine", [given], outputs=[wanted])
        text = "tensor 'y': region 'r' was unregistered while the request ran"
        assert raised.value.message() == text

    with shared_object() as before, shared_object() as other, ThreadPoolExecutor(1) as threads:
        assert register(affine, before)[0] == 200
        asking = threads.submit(ask_for_y)
        try:
            assert runs.wait(60)
            unregister(affine)
            assert register(affine, other if is_other else before)[0] == 200
        finally:
            may_end.set()
            asking.exception()  # once it has ended
            unregister(affine)
        for key in (before, other):
            assert Path(f"/dev/shm{key}").read_bytes() == CONTENT
        asking.result()


def test_where_it_is_off_nothing_is_registered(tmp_path: Path, key: str) -> None:
    with served(models.affine(tmp_path), shares_memory=False) as found:
        status, answer = register(found, key)
        assert status == 501
        assert "--shared-memory" in answer["error"]
        assert ask(found.http, "GET", "/v2/systemsharedmemory/status") == (200, [])
