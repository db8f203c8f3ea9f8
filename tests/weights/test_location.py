"""The cache's location, and the cases in which its content is not trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from engine.weights.location import CacheUnusable, default_folder, private_folder


def test_the_folder_is_the_environments_else_the_platforms(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ENGINE_CACHE_DIR", "~/mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / "mine"
    monkeypatch.delenv("ENGINE_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_folder() == Path("/xdg/inference-engine")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == tmp_path / ".cache/inference-engine"
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_folder() == tmp_path / "Library/Caches/inference-engine"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch) -> None:
    """As in a container that runs under any number."""

    def nobody(path: str) -> str:
        return path

    monkeypatch.delenv("ENGINE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", nobody)
    with pytest.raises(CacheUnusable, match="no home folder; set ENGINE_CACHE_DIR"):
        default_folder()


def test_the_folder_is_its_users_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        own = private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o702])
def test_a_folder_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1").chmod(mode)
    with pytest.raises(CacheUnusable, match=f"open to others .mode {mode:04o}, not 0700"):
        private_folder(tmp_path)


def test_a_link_or_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("")
    with pytest.raises(CacheUnusable):
        private_folder(tmp_path)
    (tmp_path / "v1").unlink()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "v1").symlink_to("elsewhere")
    with pytest.raises(CacheUnusable, match="not a folder"):
        private_folder(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir(mode=0o700)
    os.chown(tmp_path / "v1", 12345, 12345)
    with pytest.raises(CacheUnusable, match="belongs to user 12345"):
        private_folder(tmp_path)
