"""The cache's location, and the cases in which its content is not trusted."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from engine.weights.location import CacheUnusable, default_folder, private_folder
from engine.weights.store import Identity, Store


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
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give a folder to another user"
)


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


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir(mode=0o700)
    os.chown(tmp_path / "v1", 12345, 12345)
    with pytest.raises(CacheUnusable, match="belongs to user 12345"):
        private_folder(tmp_path)


@pytest.mark.parametrize("where", ["", "a", "a/b"])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_folder_above_that_others_can_write_to_is_refused_and_the_way_to_mend_it_said(
    tmp_path: Path, where: str, mode: int
) -> None:
    private_folder(tmp_path / "a" / "b")
    open_one = tmp_path / where
    open_one.chmod(mode)
    group = 12345 if os.geteuid() == 0 else -1
    if group < 0 and not mode & 0o002:
        pytest.skip("needs root, to give a folder to a group that is not the user's own")
    os.chown(open_one, -1, group)
    whom = "o-w" if mode & 0o002 else "g-w"
    with pytest.raises(CacheUnusable, match=f"chmod {whom} {open_one}.*set ENGINE_CACHE_DIR"):
        private_folder(tmp_path / "a" / "b")
    open_one.chmod(0o1777)  # as /tmp is
    private_folder(tmp_path / "a" / "b")


def test_a_folder_behind_a_link_is_judged_by_all_folders_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "there").symlink_to("../real/deep")
    cache = tmp_path / "links" / "there" / "cache"
    private_folder(cache)
    for exposed in (tmp_path / "real", tmp_path / "links"):
        exposed.chmod(0o777)
        with pytest.raises(CacheUnusable, match="can be written by every user"):
            private_folder(cache)
        exposed.chmod(0o755)
    private_folder(cache)


@pytest.mark.parametrize("link", ["nowhere", "itself"])
def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path, link: str) -> None:
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "nowhere").symlink_to("missing/folder")
    with pytest.raises(CacheUnusable, match="cannot be made"):
        private_folder(tmp_path / link)


@needs_root
def test_a_folder_below_one_of_another_user_is_refused(tmp_path: Path) -> None:
    private_folder(tmp_path / "theirs" / "mine")
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(CacheUnusable, match="theirs' belongs to user 12345, who could exchange"):
        private_folder(tmp_path / "theirs" / "mine")
    os.chown(tmp_path / "theirs", 0, 0)
    (tmp_path / "link").symlink_to("theirs")
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(CacheUnusable, match="a link of user 12345, who could lead it elsewhere"):
        private_folder(tmp_path / "link" / "mine")


_EXCHANGE = 'cd "$0" && mkdir -m 700 evil && mv -T v1 aside && mv -T evil v1'


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv"
)
def test_whoever_can_exchange_a_cache_is_one_of_those_that_it_is_refused_for() -> None:
    """The rule against the deed: another user tries to exchange it, in each arrangement."""
    cases = {0o700: 0, 0o755: 0, 0o777: 0, 0o1777: 0, 0o775: 65534, 0o1775: 65534}
    them = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    # A folder of its own: another run of pytest closes that of all to others at any time.
    with tempfile.TemporaryDirectory() as where:
        os.chmod(where, 0o711)
        for mode, group in cases.items():
            folder = Path(where) / f"{mode:o}"
            own = private_folder(folder)
            before = own.stat().st_ino
            os.chown(folder, 0, group)
            folder.chmod(mode)
            try:
                private_folder(folder)
                is_refused = False
            except CacheUnusable:
                is_refused = True
            subprocess.run(
                [*them, "/bin/sh", "-c", _EXCHANGE, folder], capture_output=True, cwd="/"
            )
            is_exchanged = own.stat().st_ino != before
            assert is_refused == is_exchanged, f"{mode:o}"


@needs_root
def test_where_a_missing_cache_cannot_be_made_nobody_else_may_make_it(tmp_path, monkeypatch):
    """The folder above belongs to another user, who makes one full of entries a moment later."""
    really = os.mkdir
    theirs = tmp_path / "theirs"
    really(theirs, 0o755)

    def refused(path, mode=0o777, **named) -> None:
        if Path(path).parent == theirs:
            raise OSError(13, "Permission denied", path)
        really(path, mode, **named)

    monkeypatch.setattr(os, "mkdir", refused)
    private_folder(theirs / "deep" / "cache")
    os.chown(theirs, 12345, 12345)
    for folder in (theirs, theirs / "deep" / "cache"):
        with pytest.raises(CacheUnusable, match="theirs' belongs to user 12345, who could exch"):
            private_folder(folder)


def test_a_read_only_folder_without_a_cache_is_an_empty_one(tmp_path, monkeypatch) -> None:
    really = os.mkdir

    def read_only(path, mode=0o777, **named) -> None:
        if tmp_path in Path(path).parents:
            raise OSError(30, "Read-only file system", path)
        really(path, mode, **named)

    monkeypatch.setattr(os, "mkdir", read_only)
    store = Store(tmp_path)
    assert store.is_read_only
    assert store.names() == []
    assert store.find(Identity("0" * 64, {})) is None
