"""What the type checker is told of the kernel is what was compiled, and all of it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from forelog import kernel
from tests.kernel import oracle

STUB = Path(kernel.__file__).with_name("_kernel.pyi")
TOLD = {
    node.name: node
    for node in ast.parse(STUB.read_text()).body
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
}
COMPILED = inspect.getmodule(kernel.crc32c)


def test_the_stub_has_every_name_of_the_compiled_module():
    found = {
        name
        for name, value in vars(COMPILED).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == COMPILED.__name__
    }
    assert found == set(TOLD)


def test_the_package_exports_all_of_them_and_the_oracle_has_all_of_them():
    assert set(kernel.__all__) == set(oracle.__all__) == set(TOLD)
    for name in kernel.__all__:
        assert getattr(kernel, name) is getattr(COMPILED, name)


def test_functions_take_what_the_stub_says():
    for name, node in TOLD.items():
        if isinstance(node, ast.FunctionDef):
            found = inspect.signature(getattr(kernel, name)).parameters
            assert list(found) == [argument.arg for argument in node.args.args], name
            optional = [
                one for one, parameter in found.items() if parameter.default is not inspect.Parameter.empty
            ]
            assert (
                optional == [argument.arg for argument in node.args.args][len(found) - len(node.args.defaults) :]
            ), name


def test_classes_have_what_the_stub_says():
    for name, node in TOLD.items():
        if isinstance(node, ast.ClassDef):
            told = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            told |= {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
            kind = getattr(kernel, name)
            assert told <= set(dir(kind)), name
            assert {one for one in vars(kind) if not one.startswith("_")} <= told, name


def test_everything_says_what_it_does():
    for name, node in TOLD.items():
        assert ast.get_docstring(node), name
