"""Forms and evidence are kept for one kind of processor: it is told from others by its features."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.host import processor

X86 = "model name\t: Some CPU\ncpu MHz\t\t: 2000.1\nflags\t\t: avx2\n\nprocessor\t: 1\n"
ARM = "processor\t: 0\nFeatures\t: asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        (X86, X86.replace("avx2", "avx2 avx512f"), False),  # as a virtual machine hides some
        (X86, X86.replace("Some", "Another"), False),
        (X86, X86.replace("2000.1", "3000.2"), True),
        (X86, X86 + "flags\t\t: of the second\n", True),
        (ARM, ARM.replace("0xd0c", "0xd40"), False),
        (ARM, ARM.replace("0x41", "0x61"), False),
        ("", ARM, False),
    ],
)
def test_processors_of_other_designs_have_other_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str, are_alike: bool
) -> None:
    found = []
    for number, text in enumerate((one, other)):
        (tmp_path / f"{number}").write_text(text)
        monkeypatch.setattr(processor, "CPUINFO", str(tmp_path / f"{number}"))
        found.append(processor.features())
    assert (found[0] == found[1]) is are_alike


def test_a_processor_is_named_as_its_maker_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(X86)
    monkeypatch.setattr(processor, "CPUINFO", str(tmp_path / "cpuinfo"))
    assert processor.name() == "Some CPU"
    monkeypatch.setattr(processor, "CPUINFO", str(tmp_path / "missing"))
    assert processor.name()
