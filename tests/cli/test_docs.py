"""docs/cli.md describes the command as it is, all of it and nothing else."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from forelog.cli import COMMANDS, command, help_text

DOCS = (Path(__file__).parent.parent.parent / "docs" / "cli.md").read_text()
COMMON = {"-h", "--help", "--json", "-v", "--verbose"}


def section(title: str) -> str:
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert match, f"docs/cli.md has no section {title!r}"
    return match[1]


def described(name: str) -> set[str]:
    """What the table of options of a section describes."""
    table = section(f"forelog {name}").rpartition("| option | |")[2]
    return {cell.split()[0].rstrip(".") for cell in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)}


def options_of(name: str) -> set[str]:
    parser: argparse.ArgumentParser = command(name).parser()
    names: set[str] = set()
    for action in parser._actions:
        names |= set(action.option_strings) or {str(action.metavar)}
    return names


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described_and_none_that_there_is_not(name: str) -> None:
    assert described(name) == options_of(name) - COMMON


@pytest.mark.parametrize("name", COMMANDS)
def test_every_choice_of_an_option_is_described(name: str) -> None:
    parser: argparse.ArgumentParser = command(name).parser()
    for action in parser._actions:
        if action.choices:
            shown = "\\|".join(str(choice) for choice in action.choices)
            assert f"`{action.option_strings[0]} {shown}`" in section(f"forelog {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name: str) -> None:
    parser: argparse.ArgumentParser = command(name).parser()
    assert [action.dest for action in parser._actions if not action.help] == []


def test_common_options_are_described_once() -> None:
    start = DOCS.partition("## Exit codes")[0]
    assert all(f"`{option}`" in start for option in COMMON)


def test_every_command_is_described_as_in_its_help() -> None:
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(#forelog-\w+\) \| (.+) \|$", DOCS, re.MULTILINE))
    assert {name: text.replace("`", "") for name, text in rows.items()} == COMMANDS


def test_exit_codes_are_those_of_the_help() -> None:
    documented = re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)
    helped = re.findall(r"^  (\d+) ", help_text(), re.MULTILINE)
    assert documented == helped


def test_exit_codes_are_those_of_the_code() -> None:
    from forelog.cli import codes

    values = sorted(value for name, value in vars(codes).items() if name.isupper() and isinstance(value, int))
    assert [str(value) for value in values] == re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)


def test_every_command_has_an_example() -> None:
    for name in COMMANDS:
        assert re.search(rf"^\$ .*\bforelog {name}\b", section(f"forelog {name}"), re.MULTILINE)
