"""forelog builds with and without a C compiler."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_is_compiled_is_compiled_as_a_whole_and_from_the_sources_as_they_are():
    """Where a module can't be compiled the build goes on without it: that must not go unseen here."""
    every = sorted((ROOT / "src" / "forelog" / "jobs").rglob("*.pxd"))
    for types in every:
        built = Path(import_module(f"forelog.jobs.{types.parent.name}.{types.stem}").__file__)
        assert built.suffix == ".so", f"{types.stem} is not compiled: see what `python setup.py build_ext` says"
        for source in (*every, types.with_suffix(".py")):  # a module is compiled against the types of the others
            assert source.stat().st_mtime <= built.stat().st_mtime, (
                f"{source.name} is newer than what runs: make test"
            )
