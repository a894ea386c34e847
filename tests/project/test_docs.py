"""What the README and the docs say is what happens."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

import forelog
import forelog.errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_runs_and_prints_what_the_text_block_after_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = FENCE.findall(page.read_text())
    namespace: dict[str, object] = {"__name__": "__main__"}
    for i, (language, code) in enumerate(blocks):
        if language != "python":
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"{page.name}, block {i + 1}", "exec"), namespace)
        shown = blocks[i + 1][1] if i + 1 < len(blocks) and blocks[i + 1][0] == "text" else None
        if shown is not None:
            assert out.getvalue() == shown


def test_the_readme_is_read_in_two_minutes():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """What the headings of a page are linked by."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r" +", "-", re.sub(r"[^\w\- ]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_a_heading_lead_to_one(page):
    for target, anchor in re.findall(r"\]\(([\w./-]*)#([^)]+)\)", page.read_text()):
        other = page.parent / target if target else page
        assert anchor in anchors(other), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", ["durability.md", "defects.md"])
def test_every_test_that_a_page_names_exists(page):
    """A test is named by its file and its name, or the start of it and an ellipsis; the file may be left out."""
    text = (ROOT / "docs" / page).read_text()
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    everything = "\n".join(sources.values())
    named = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_[a-z0-9_]+)(…?)`", text)
    assert len(named) > 12
    for path, name, ellipsis in named:
        found = re.search(rf"def {name}{'' if ellipsis else '[(]'}", sources[path] if path else everything)
        assert found, f"{page} names {path or 'a test'}::{name}"
    for path in re.findall(r"`(tests/[\w/]+\.py)", text):
        assert path in sources, f"{page} names {path}"


def test_every_defect_names_the_test_that_holds_it():
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", (ROOT / "docs/defects.md").read_text(), re.MULTILINE)
    rows = [row for row in rows if row[2] != "the test"]
    assert len(rows) > 70
    for what, how, tests in rows:
        assert re.fullmatch(r"(`tests/[\w/]+\.py::test_[a-z0-9_]+…?`(, )?)+", tests), f"{what}: {tests}"
        assert len(how) > 7, what


def test_every_file_that_the_design_names_exists():
    text = (ROOT / "docs/design.md").read_text()
    named = set(re.findall(r"(?<![\w./])(?:\w+/)*\w+\.(?:py|pyx|pxi|pyi|pxd)\b", text)) - {"__init__.py"}
    assert len(named) > 40
    assert [name for name in sorted(named) if not (ROOT / "src/forelog" / name).exists()] == []


def test_every_package_is_in_the_tree_of_the_design():
    tree = (ROOT / "docs/design.md").read_text().partition("## The tree")[2].partition("\n## ")[0]
    shown = set(re.findall(r"^    (\w+/|\w+\.py) ", tree, re.MULTILINE))
    package = ROOT / "src/forelog"
    there = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    there |= {path.name for path in package.glob("*.py") if not path.name.startswith("_")}
    assert shown == there


def test_every_page_is_in_the_sites_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name in navigation, page.name


def test_every_public_name_is_in_the_api_reference():
    text = (ROOT / "docs/api.md").read_text()
    shown = set(re.findall(r"^::: forelog\.(\S+)$", text, re.MULTILINE))
    last = {name.rpartition(".")[2] for name in shown}
    for package in ("errors", "commitlog", "state", "spark", "testing", "jobs", "broker"):
        public = import_module(f"forelog.{package}").__all__
        assert package in shown or set(public) <= last, set(public) - last
    assert set(forelog.__all__) - set(forelog.errors.__all__) <= last
    for name in shown:  # a page, or an object in one
        module, _, thing = f"forelog.{name}".rpartition(".")
        assert hasattr(import_module(module), thing) or import_module(f"forelog.{name}"), name


def test_nothing_names_a_home_folder_or_where_packages_come_from():
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split()
    assert listed
    for name in listed:
        path = ROOT / name
        if path.suffix in (".py", ".pyx", ".pxi", ".md", ".toml", ".txt", ".yml", ".h", "") and path.is_file():
            text = path.read_text(errors="ignore")
            assert not re.search(r"(?<![\w.])/(home|root|Users)/\w", text), f"{name} has a path of one machine"
            if name.startswith("requirements/") or name in ("pyproject.toml", "Makefile", "setup.py"):
                assert "://" not in text, f"{name} names an address: packages are asked for by name"
