"""A private folder beside the cache is its process's alone, and ends with it, however it ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from other_process import forked

from engine.backends import open_backend
from engine.context import Context
from engine.formats import ModelFile
from engine.plan import BuildOptions, Targets, build_plan
from engine.weights.compile_cache import CompileCache
from engine.weights.location import CacheUnusable
from engine.weights.shared.private import PrivateCache, PrivateFolder
from engine.weights.store import Store
from engine_testing import models


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the private folders beside this test's cache."""
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "v1" / "private"


def locks(private: Path) -> list[str]:
    return os.listdir(private.parent / "locks")


def test_it_is_its_users_alone_and_removed_with_what_is_in_it(private: Path) -> None:
    folder = PrivateFolder()
    assert folder.path.parent == private
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    (folder.path / "file").write_bytes(b"x")
    folder.close()
    folder.close()
    assert os.listdir(private) == []
    assert locks(private) == []


def test_it_lies_beside_the_cache_that_is_named(private: Path, tmp_path: Path) -> None:
    with PrivateFolder(tmp_path / "other") as folder:
        assert folder.path.parent == tmp_path / "other" / "v1" / "private"
    assert not private.exists()


def test_it_ends_with_its_owner(private: Path) -> None:
    folder = PrivateFolder()
    path = folder.path
    del folder
    assert not path.exists()


def test_a_second_one_leaves_the_first_alone(private: Path) -> None:
    with PrivateFolder() as first, PrivateFolder() as second:
        assert first.path.is_dir()
        assert second.path.is_dir()
        Store(private.parents[1]).prune(0)
        assert first.path.is_dir()


def test_a_process_that_ends_removes_it(private: Path) -> None:
    subprocess.run([sys.executable, "-c", _MAKE], check=True, timeout=60)
    assert os.listdir(private) == []


@pytest.mark.parametrize("how", ["the next one", "prune"])
def test_what_a_killed_process_has_left_is_removed(private: Path, how: str) -> None:
    killed = subprocess.run([sys.executable, "-c", _MAKE + _KILL], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    [left] = os.listdir(private)
    if how == "prune":
        Store(private.parents[1]).prune(1 << 40)
        assert os.listdir(private) == []
    else:
        with PrivateFolder():
            assert left not in os.listdir(private)
    assert locks(private) == []


def test_a_forked_child_leaves_it_to_its_parent(private: Path) -> None:
    folder = PrivateFolder()
    child = os.fork()
    if not child:
        status = 1
        try:
            folder.close()  # as the end of the process does
            del folder
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert folder.path.is_dir()
    with PrivateFolder():
        assert folder.path.is_dir(), "the lock is still this process's"
    folder.close()
    assert os.listdir(private) == []


def test_a_child_that_lives_on_does_not_hold_it(private: Path) -> None:
    folder = PrivateFolder()
    with forked():
        folder.close()
        assert not folder.path.exists()
        assert locks(private) == []


def test_a_folder_that_cannot_be_made_says_where(private: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(CacheUnusable, match="cache/v1' cannot be made"):
        PrivateFolder()


def test_models_of_any_size_are_shared_by_way_of_it(private, tmp_path, null_backend) -> None:
    """Also where the environment switches the cache off: this one was asked for."""
    path = models.affine(tmp_path)
    context = Context()
    context.target = [null_backend]
    x = np.array([[1, 2, 3]], np.float32)
    with PrivateCache() as forms:
        assert isinstance(forms, CompileCache)
        assert forms.why_unused.__self__ is forms
        for _ in range(2):
            plan = build_plan(ModelFile(path)(), Targets(BuildOptions(context, {})), forms=forms)
            lent = plan.pool.borrow()
            [y] = plan.predict(lent.context, [x], None, None)
            np.testing.assert_array_equal(y, 2 * x + 1)
            plan.pool.give_back(lent)
            plan.pool.close()
        [entry] = forms.store().entries()
        assert entry.title == str(path)
    assert os.listdir(private) == []
    assert open_backend(null_backend).name == null_backend


_MAKE = "from engine.weights.shared.private import PrivateFolder; folder = PrivateFolder()\n"
_KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
