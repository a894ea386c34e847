"""What the original program wrote, and what it made of it."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "vectors" / "workq"
LOGS = {"cmdlog": "expected.json", "cmdlog-2090": "expected-2090.json"}


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def records(log: str) -> list[dict[str, Any]]:
    return load(LOGS[log])["records"]


def payload(record: dict[str, Any]) -> bytes:
    return b64decode(record["record_payload_base64"])


def edited(case: dict[str, Any], path: Path) -> None:
    """Make the log of a replay case."""
    shutil.copytree(FOLDER / case["base"], path)
    segment = path / case["segment"]
    data = segment.read_bytes()
    if case["edit"] == "append":
        data += b64decode(case["append_file_bytes_base64"])
    elif case["edit"] == "truncate":
        data = data[: -case["cut_bytes"]]
    elif case["edit"] == "truncate_to":
        data = data[: case["cut_to"]]
    segment.write_bytes(data)


def all_payloads() -> list[bytes]:
    """Of both logs, and those that were appended in the cases, right and wrong ones."""
    found = [payload(record) for log in LOGS for record in records(log)]
    appended = [case for case in load("replay_cases.json") if case["edit"] == "append"]
    return found + [b64decode(case["append_record_payload_base64"]) for case in appended]
