"""Every package's docstring is a map: a line for each of its modules and packages, and for nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "forelog"
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)


def entries(folder: Path) -> set[str]:
    modules = {path.name for path in folder.glob("*.py") if path.name != "__init__.py"}
    return modules | {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_packages_docstring_lists_what_is_in_it(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    listed = re.findall(r"^ *(\w+\.py|\w+/) {2,}\S", text, re.MULTILINE)
    assert set(listed) == entries(folder)
    assert len(set(listed)) == len(listed)
