"""Which statements of MQTT 5.0 the tests hold the broker to: the table in docs/mqtt.md, made from docstrings.

python -m tests.broker.mqtt.statements      writes the table anew
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "mqtt.md"
BEGIN, END = "<!-- made by tests/broker/mqtt/statements.py -->", "<!-- until here -->"

# Each section's statements, by how many there are.
COUNTS = {
    "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 6, "2.2.2": 1, "3.1.0": 2, "3.1.2": 30, "3.1.3": 12,
    "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20, "3.3.4": 10, "3.4.2": 3, "3.5.2": 3, "3.6.1": 1,
    "3.6.2": 3, "3.7.2": 3, "3.8.1": 1, "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2,
    "3.10.4": 6, "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4, "3.14.4": 3,
    "3.15.1": 1, "3.15.2": 3, "4.1.0": 2, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13, "4.4.0": 2, "4.5.0": 2, "4.6.0": 6,
    "4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4, "4.8.2": 6, "4.9.0": 3, "4.12.0": 7, "4.12.1": 2, "4.13.1": 1,
    "4.13.2": 1, "6.0.0": 4,
}  # fmt: skip

CLIENT = "a rule for clients, not for brokers"
NEVER = "doesn't arise: the broker never sends it"
ABLE = "doesn't arise: the broker can do everything that it is about"
AUTH = "doesn't arise: there is no authentication in several steps"
WEB = "over WebSockets: held by that transport's own tests"
WHY_NOT = {
    "2.2.1-1": "there is none with this number in the standard",
    "3.1.2-20": CLIENT, "3.1.2-28": NEVER, "3.1.2-29": NEVER, "3.1.2-30": CLIENT,
    "3.1.3-1": "held by the codec's tests, which read and write every field in its order",
    "3.1.4-2": "held by the tests of users and passwords",
    "3.2.2-4": CLIENT, "3.2.2-5": CLIENT, "3.2.2-9": ABLE, "3.2.2-10": ABLE, "3.2.2-11": ABLE, "3.2.2-12": ABLE,
    "3.2.2-13": ABLE, "3.2.2-14": ABLE, "3.2.2-18": CLIENT,
    "3.2.2-19": "a CONNACK that is too large is left out as a whole; no test of its own",
    "3.2.2-20": NEVER, "3.3.2-10": CLIENT, "3.3.4-5": ABLE, "3.3.4-8": CLIENT,
    "3.4.2-2": NEVER, "3.4.2-3": NEVER, "3.5.2-2": NEVER, "3.5.2-3": NEVER, "3.6.2-2": NEVER, "3.6.2-3": NEVER,
    "3.7.2-2": NEVER, "3.7.2-3": NEVER, "3.9.2-1": NEVER, "3.9.2-2": NEVER, "3.11.2-1": NEVER, "3.11.2-2": NEVER,
    "3.14.2-3": "a DISCONNECT that is too large is left out as a whole; no test of its own",
    "3.14.2-4": NEVER, "3.15.2-1": AUTH, "3.15.2-2": AUTH, "3.15.2-3": AUTH,
    "4.3.2-1": "by construction: ids are given out in turn; the tests of sessions hold it",
    "4.3.3-1": "by construction: ids are given out in turn; the tests of sessions hold it",
    "4.5.0-2": CLIENT, "4.6.0-1": CLIENT, "4.6.0-2": CLIENT, "4.6.0-3": CLIENT, "4.6.0-4": CLIENT,
    "4.7.3-3": "by construction: a length has two bytes",
    "4.12.0-2": AUTH, "4.12.0-3": AUTH, "4.12.0-4": AUTH, "4.12.0-5": AUTH, "4.12.0-7": CLIENT, "4.12.1-1": AUTH,
    "4.12.1-2": AUTH, "6.0.0-1": WEB, "6.0.0-2": WEB, "6.0.0-3": CLIENT, "6.0.0-4": WEB,
}  # fmt: skip


def statements() -> list[str]:
    return [f"{section}-{number}" for section, count in COUNTS.items() for number in range(1, count + 1)]


def covered() -> dict[str, list[str]]:
    """The tests of each statement, by what their docstrings say."""
    found: dict[str, list[str]] = {}
    for path in sorted(HERE.glob("test_conformance_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for number in re.findall(r"\[MQTT-([\d.]+-\d+)\]", ast.get_docstring(node) or ""):
                    name = f"{path.stem.removeprefix('test_conformance_')}: {node.name[5:].replace('_', ' ')}"
                    if name not in found.setdefault(number, []):
                        found[number].append(name)
    return found


def table() -> str:
    tests = covered()
    lines = ["| statement | test |", "|---|---|"]
    lines += [f"| MQTT-{one} | {'; '.join(tests[one])} |" for one in statements() if one in tests]
    lines += ["", "And these are not:", "", "| statement | why |", "|---|---|"]
    lines += [f"| MQTT-{one} | {WHY_NOT.get(one, '')} |" for one in statements() if one not in tests]
    return "\n".join(lines)


def page_with(table: str) -> str:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(table()))
