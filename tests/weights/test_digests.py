"""Digests of files are remembered for as long as the files stay as they are."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from engine.formats.opened import FileVersion
from engine.weights.digests import Digests

OLD_NS = time.time_ns() - 10**10


def write(path: Path, data: bytes, mtime_ns: int = OLD_NS) -> str:
    path.write_bytes(data)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    return Digests(tmp_path / "digests")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def records(path: Path) -> list[Path]:
    return list((path.parent / "digests").glob("*.json"))


def forge(path: Path) -> None:
    """Let the record of a file say that its digest is of zeros."""
    [record] = records(path)
    said = json.loads(record.read_text())
    record.write_text(record.read_text().replace(said["sha256"], ZEROS))


ZEROS = "0" * 64


def test_what_is_remembered_is_not_read_again(path, digests) -> None:
    digest = write(path, b"some weights")
    assert digests.of(path, is_ours=True) == digest
    forge(path)
    assert digests.of(path, is_ours=True) == ZEROS  # the record is believed
    assert digests.of(path, anew=True) == digest


def test_a_file_that_was_just_written_is_hashed_each_time(path, digests) -> None:
    digest = write(path, b"one")
    assert digests.of(path) == digest
    assert records(path) == []


@pytest.mark.parametrize("change", ["same size", "other size", "time set back"])
def test_a_file_that_changed_is_hashed_again(path, digests, change, monkeypatch) -> None:
    monkeypatch.setattr("engine.weights.digests.SETTLED_NS", 0)  # as if it was written long ago
    write(path, b"one")
    digests.of(path)
    assert len(records(path)) == 1
    time.sleep(0.02)  # further than the file system's clock ticks
    new = b"two" if change != "other size" else b"three"
    # The same mtime to the nanosecond leaves another ctime.
    digest = write(path, new, OLD_NS + (change != "time set back"))
    assert digests.of(path) == digest


@pytest.mark.parametrize("record", ["", "{}", "[]", '{"version": null}', "\0", None])
def test_a_damaged_record_is_none(path, digests, record) -> None:
    digest = write(path, b"one")
    digests.of(path, is_ours=True)
    [file] = records(path)
    if record is None:  # a pipe, which is not waited for
        file.unlink()
        os.mkfifo(file)
    else:
        file.write_text(record)
    assert digests.of(path) == digest


def test_links_pipes_and_missing_files_are_refused(tmp_path, digests) -> None:
    write(tmp_path / "file", b"one")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing"):
        with pytest.raises(OSError, match=name):
            digests.of(tmp_path / name)


def test_a_file_that_is_not_the_one_that_was_checked_is_refused(tmp_path, path, digests) -> None:
    digest = write(path, b"one")
    checked = FileVersion.of(path.stat())
    assert digests.of(path, checked=checked) == digest
    path.rename(tmp_path / "old")
    write(path, b"one")
    with pytest.raises(OSError, match="is not the file that was checked"):
        digests.of(path, checked=checked)


def test_a_file_of_ours_that_was_changed_with_its_size_and_time_kept_is_hashed_again(
    path, digests
) -> None:
    write(path, b"one")
    digests.of(path, is_ours=True)
    digest = write(path, b"two")  # the same inode, size and time
    assert digests.of(path, is_ours=True) == digest


def test_links_that_come_and_go_do_not_make_a_file_of_ours_another(tmp_path, path, digests) -> None:
    write(path, b"some weights")
    digests.of(path, is_ours=True)
    forge(path)
    (tmp_path / "link").hardlink_to(path)
    assert digests.of(path, is_ours=True) == ZEROS  # known still
    (tmp_path / "link").unlink()
    assert digests.of(path, is_ours=True) == ZEROS
