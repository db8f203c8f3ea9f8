from __future__ import annotations

import gc
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
from importlib_metadata import distributions

from engine import backends
from engine.backends.entry_points import EntryPoint, entry_points

GROUP = "some.group.v1"
METADATA = "Metadata-Version: 2.1\nName: some-thing\nVersion: 1.2\n\nName: not this\n"


def found(group: str = GROUP) -> list[EntryPoint]:
    return list(entry_points(group, pytest.fail))


def write(folder: Path, text: str, metadata: str = METADATA, file: str = "METADATA") -> None:
    folder.mkdir(parents=True)
    (folder / "entry_points.txt").write_text(text)
    (folder / file).write_text(metadata)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_what_this_environment_offers_is_what_importlib_metadata_finds() -> None:
    theirs = {
        (point.group, point.name, point.value)
        for dist in distributions()
        for point in dist.entry_points
        if point.group.startswith("pytest")
    }
    assert theirs
    assert {(point.group, point.name, point.value) for point in found("pytest")} == theirs


def test_others_are_found_from_a_working_folder_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [point.value for point in found("pytest")]
    monkeypatch.syspath_prepend("")  # as `python -c` has it
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert [point.value for point in found("pytest")] == expected


def test_the_file_is_read_as_its_specification_says(path: Path) -> None:
    text = """
        stray = line
        [other.group]
        a = not_this
        [ some.group.v1 ]
        # a comment = no entry
        b = json:loads
        c=os.path : join.__name__ [extra1, extra2]
        no equals sign
        [some.group.v12]
        d = newer
    """
    write(path / "some_thing-1.2.dist-info", text)
    points = found()
    assert [(p.group, p.name) for p in points] == [
        (GROUP, "b"), (GROUP, "c"), ("some.group.v12", "d"),
    ]  # fmt: skip
    import json

    assert points[0].load() is json.loads
    assert points[1].load() == "join"


def test_a_group_of_another_version_is_not_taken_for_this_one(path: Path) -> None:
    write(path / "later-1.dist-info", f"[{backends.GROUP}0]\nlater = nothing\n")
    assert "later" not in backends.installed()
    assert "later" in backends.known()


def test_a_module_that_is_not_there_is_an_import_error(path: Path) -> None:
    write(path / "some_thing-1.2.dist-info", f"[{GROUP}]\na = no_such_module:name\n")
    with pytest.raises(ImportError, match="no_such_module"):
        found()[0].load()


@pytest.mark.parametrize(
    ("folder", "file"),
    [
        ("some_thing-1.2.dist-info", "METADATA"),
        ("some_thing.egg-info", "PKG-INFO"),
        ("Some_Thing-1.2.Dist-Info", "METADATA"),
        ("EGG-INFO", "PKG-INFO"),
    ],
)
def test_wheels_and_what_setuptools_left_are_found(path: Path, folder: str, file: str) -> None:
    write(path / folder, f"[{GROUP}]\na = json\n", file=file)
    [point] = found()
    assert point.owner() == {"distribution": "some-thing", "version": "1.2"}


def test_a_distribution_in_a_zip_file_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = path / "bundle.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("some_thing-1.2.dist-info/entry_points.txt", f"[{GROUP}]\na = zipped:value\n")
        file.writestr("some_thing-1.2.dist-info/METADATA", METADATA)
        file.writestr("zipped.py", "value = 7\n")
    monkeypatch.syspath_prepend(archive)
    [point] = found()
    assert point.load() == 7
    assert point.owner() == {"distribution": "some-thing", "version": "1.2"}
    sys.modules.pop("zipped")
    with warnings.catch_warnings():  # importlib_metadata leaves the file to the collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_entry_points_come_in_the_order_of_the_path(path, monkeypatch) -> None:
    for name in ("second", "first"):
        write(path / name / "some_thing-1.2.dist-info", f"[{GROUP}]\n{name} = json\n")
        monkeypatch.syspath_prepend(path / name)
    assert [point.name for point in found()] == ["first", "second"]


def test_a_path_that_is_not_there_or_is_no_zip_file_hides_nothing(path, monkeypatch) -> None:
    write(path / "some_thing-1.2.dist-info", f"[{GROUP}]\na = json\n")
    (path / "text").write_text("no zip file")
    (path / "a_file-1.dist-info").write_text("no folder")
    monkeypatch.setattr(sys, "path", [str(path / "absent"), str(path / "text"), *sys.path])
    assert [point.name for point in found()] == ["a"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "METADATA").write_bytes(b"\xff\xfe"),
        lambda folder: (folder / "METADATA").write_text(""),
        lambda folder: (folder / "METADATA").write_text("Name: some-thing\n"),
        lambda folder: (folder / "METADATA").unlink(),
    ],
    ids=["no text", "empty", "no version", "missing"],
)
def test_damaged_metadata_leave_the_owner_unknown(path, damage) -> None:
    folder = path / "some_thing-1.2.dist-info"
    write(folder, f"[{GROUP}]\na = json\n")
    damage(folder)
    [point] = found()
    assert point.owner() == {}
    assert point.load().__name__ == "json"


def test_entry_points_that_are_no_text_are_told_of_and_hide_nothing(path: Path) -> None:
    write(path / "some_thing-1.2.dist-info", f"[{GROUP}]\na = json\n")
    write(path / "torn-1.dist-info", "")
    (path / "torn-1.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[a]")
    told: list[str] = []
    assert [point.name for point in entry_points(GROUP, told.append)] == ["a"]
    assert len(told) == 1
    assert "torn-1.dist-info are unreadable" in told[0]
