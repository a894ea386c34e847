"""A docstring stands alone: it is printed apart from the line above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for path in (ROOT / "src").rglob("*.py*") if path.suffix in (".py", ".pyi"))
LEANING = re.compile(
    r"(Its|Their|Of|And|That|Those|Then|Also|It)\b|The same( \w+)?\.|The same (as|for)\b|By \w+\."
)
"""How one begins that leans on what stands above it."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_docstring_does_not_lean_on_the_line_above_it(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                assert not LEANING.match(text), f"{path.name}:{node.lineno} begins with {text[:40]!r}"
