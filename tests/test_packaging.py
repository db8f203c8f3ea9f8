"""The packages' own descriptions are true where they are read: on an index, from a wheel."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def settings(project: Path) -> dict[str, Any]:
    return tomllib.loads((project / "pyproject.toml").read_text())


def projects() -> list[Path]:
    return [ROOT, *(path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))]


def test_every_package_says_for_whom_it_is_and_on_which_python() -> None:
    core = {*settings(ROOT)["project"]["classifiers"]} - {"Framework :: Pytest"}
    assert len(projects()) >= 4
    for project in projects():
        assert core <= {*settings(project)["project"]["classifiers"]}, project


def test_examples_of_third_parties_run_beside_every_core_of_the_contract() -> None:
    found = [path.parent for path in sorted(ROOT.glob("examples/third_party/*/pyproject.toml"))]
    assert found
    for project in found:
        core = [
            requirement
            for requirement in settings(project)["project"]["dependencies"]
            if requirement.startswith("inference-engine")
        ]
        assert core == ["inference-engine>=0.1,<1"], project


def test_the_source_distribution_has_every_file_that_readme_links_to() -> None:
    included = settings(ROOT)["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    links = {*LINK.findall((ROOT / "README.md").read_text())}
    assert len(links) > 15
    for link in links:
        path = "/" + (ROOT / link).resolve().relative_to(ROOT.resolve()).as_posix()
        there = any(path.startswith(f"{part}/") or fnmatch(path, part) for part in included)
        assert there, link
        assert (ROOT / link).exists(), link


def test_a_package_index_shows_no_link_that_leads_nowhere() -> None:
    for project in projects():
        page = settings(project)["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
        text = (project / "README.md").read_text()
        assert re.search(r"\]\((?!https:)", text), project
        for change in page["substitutions"]:
            text = re.sub(change["pattern"], change["replacement"], text)
        assert not re.search(r"\]\((?!https:)", text), project
        assert "readme" in settings(project)["project"]["dynamic"], project


def test_security_points_to_no_address_that_is_not_there() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    people = settings(ROOT)["project"]["authors"]
    has_address = any("email" in person for person in people) or "urls" in settings(ROOT)["project"]
    assert ("metadata names no address" in text) is not has_address
