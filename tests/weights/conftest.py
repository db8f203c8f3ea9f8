"""A cache of the test's own, and models that are built with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import engine
from engine import Model
from engine.weights.store import Store
from engine_testing import models, null_run
from engine_testing.plugins import install

Load = Callable[..., Model]

sys.path.insert(0, str(Path(__file__).parent))  # helpers of this folder can be imported

from lending import Lend, listed  # noqa: E402
from other_process import Other, started  # noqa: E402


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """y = 2x + 1, x float32[batch, 3]."""
    return models.affine(tmp_path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that holds the entries of this test, once something was built."""
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "default"))
    return tmp_path / "cache" / "v1" / "entries"


@pytest.fixture
def load(cache: Path, null_backend: str) -> Load:
    """Build a model on the null backend, with a cache that the configuration names."""

    def load(path: Path, target: str = null_backend, **sections: dict[str, str]) -> Model:
        common = {"model_cache_dir": str(cache.parents[1]), **sections.pop("common_context", {})}
        return engine.load(path, target, config={"common_context": common, **sections})

    return load


@pytest.fixture
def store(cache: Path) -> Store:
    """The cache that such a configuration names."""
    return Store(cache.parents[1])


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that the null backend compiled, rather than read in compiled form."""
    done: list[str] = []
    write = null_run.write_compiled

    def count(folder: Path, loaded: object) -> None:
        done.append(str(folder))
        write(folder, loaded)

    monkeypatch.setattr(null_run, "write_compiled", count)
    return done


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the null backend, for other processes."""
    folder = tmp_path_factory.mktemp("plugins")
    install(folder, "null", "engine_testing.null_device")
    return folder


@pytest.fixture(scope="module")
def slave(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    """A process that masters list, with a compile cache folder of its own."""
    with started(plugins, tmp_path_factory.mktemp("slave")) as process:
        yield process


@pytest.fixture(scope="module")
def stranger(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    """Another one, that most masters do not list."""
    with started(plugins, tmp_path_factory.mktemp("stranger")) as process:
        yield process


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder beside whose cache this process lends."""
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def lend(folder: Path, null_backend: str, path: Path) -> Iterator[Lend]:
    """Build a model that lends its weights to the processes of these numbers."""
    masters = []

    def lend(*pids: int, target: str = null_backend, **common: str) -> Model:
        config = {"common_context": {**listed(*pids)["common_context"], **common}}
        masters.append(engine.load(path, target, config=config))
        return masters[-1]

    yield lend
    for master in masters:
        master.close()
