"""A backend that can share weights itself is asked to, for the processes of the list alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from lending import HANDLE, by_handle, listed
from other_process import Other, X, started

import engine
from engine.errors import BackendUnavailable
from engine_testing import models
from engine_testing.plugins import install, installed

SOURCE = Path(__file__).with_name("vendor_backend.py").read_text()


@pytest.fixture(params=["with a compiled form", "without one"])
def vendor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The folder in which the plugin leaves what it lends."""
    form = "yes" if request.param == "with a compiled form" else "no"
    name = f"vendor_{form}_{os.getpid()}"  # imported once a process
    plugins = tmp_path / "plugins"
    install(plugins, "vendor", name, source=SOURCE)
    (tmp_path / "vendor").mkdir()
    monkeypatch.setenv("VENDOR_FOLDER", str(tmp_path / "vendor"))
    monkeypatch.setenv("VENDOR_FORM", form)
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    with installed(plugins):
        yield tmp_path / "vendor"


@pytest.fixture
def slave(vendor: Path, tmp_path: Path) -> Iterator[Other]:
    with started(tmp_path / "plugins", tmp_path / "other cache") as process:
        yield process


def test_a_slave_runs_on_the_weights_that_the_backend_lends(vendor, slave, tmp_path) -> None:
    path = models.affine(tmp_path)
    config = listed(slave.pid)
    with engine.load(path, "vendor", config=config) as master:
        handle = master.get_model_info(HANDLE)
        [y] = master(x=np.array(X, np.float32)).values()
        assert y.tolist() == [[3, 5, 7]]
        for _ in range(2):
            answer = slave.build(path, by_handle(handle), "vendor")
            assert answer["y"] == [[15, 25, 35]]  # 10x + 5
            assert answer["compiled"] == 0
        assert (vendor / "tokens").read_text() == 2 * f"({slave.pid},)"
        assert not (vendor / "closed").exists()
    assert (vendor / "closed").exists(), "the loan was not ended"
    assert os.listdir(tmp_path / "cache" / "v1" / "private") == []


@pytest.mark.parametrize(
    ("flag", "says"),
    [("refuse", "the driver has no such calls"),
     ("fail", r"'vendor' is at fault: its engine_share_weights")],
)  # fmt: skip
def test_what_the_backend_refuses_to_lend_is_an_error_with_its_reason(
    vendor: Path, tmp_path: Path, path: Path, flag: str, says: str
) -> None:
    (vendor / flag).touch()
    with pytest.raises(BackendUnavailable, match=says):
        engine.load(path, "vendor", config=listed(os.getpid()))
    assert os.listdir(tmp_path / "cache" / "v1" / "private") == []


def test_a_secret_model_may_be_lent_by_the_vendors_means(vendor, slave, tmp_path) -> None:
    """Nothing of it is on disk but what the backend lends."""
    pytest.importorskip("cryptography")
    from engine.formats.encryption import encrypt

    path = tmp_path / "secret.mindir"
    path.write_bytes(encrypt(models.affine(tmp_path).read_bytes(), b"0123456789abcdef"))
    config = listed(slave.pid)
    with engine.load(path, "vendor", dec_key=b"0123456789abcdef", config=config) as master:
        handle = master.get_model_info(HANDLE)
        [private] = (tmp_path / "cache" / "v1" / "private").iterdir()
        assert list(private.iterdir()) == []
        config = by_handle(handle)
        answer = slave.build(path, config, "vendor", dec_key="0123456789abcdef")
        assert answer["y"] == [[15, 25, 35]]


def test_a_model_whose_memory_others_use_is_not_built_for_other_sizes(vendor, tmp_path) -> None:
    config = listed(os.getpid())
    with (
        engine.load(models.no_batch(tmp_path), "vendor", config=config) as master,
        pytest.raises(ValueError, match="other processes use its memory: its weights are lent"),
    ):
        master.resize(master.get_inputs(), [[4, 3]])
