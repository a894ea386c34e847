"""What is in the payload and the result of a task's job: JSON, so programs in any language can add and do them.

A call, in the payload::

    {"task": "shop.send_invoice", "args": [17], "kwargs": {"copy": true}, "headers": {"trace": "a1"}}

`args`, `kwargs` and `headers` may be left out. In workflows, `results` has the ids of jobs whose results come
before `args`: each as an argument, or with `"gather": true` all as one list.

The result of a job that completed is the value that the task returned. That of a job that failed is::

    {"error": {"type": "ValueError", "message": "no such customer", "traceback": "Traceback (most recent ..."}}

>>> payload = encode_call(Call("shop.send_invoice", (17,), {"copy": True}))
>>> payload
b'{"task":"shop.send_invoice","args":[17],"kwargs":{"copy":true}}'
>>> decode_call(payload)
Call(task='shop.send_invoice', args=(17,), kwargs={'copy': True}, headers={}, results=(), gather=False)
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from forelog.jobs.client.signals import Discard, Retry
from forelog.state.models import plain_of


def _loaded() -> Any:
    try:
        import msgspec
    except ImportError:
        return None
    return msgspec


msgspec = _loaded()
"""The module msgspec, or None if it isn't installed: then only JSON's own types work."""
_TRACEBACK_BYTES = 8 << 10
_MESSAGE_CHARS = 2000
_RUNNER = str(Path(__file__).with_name("runner.py"))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a task."""

    task: str
    """The task's name."""
    args: Sequence[Any] = ()
    """Arguments by position."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments by name."""
    headers: dict[str, Any] = field(default_factory=dict)
    """What middleware sends along."""
    results: Sequence[str] = ()
    """The ids of jobs whose results come before `args`."""
    gather: bool = False
    """Whether these results are one argument, a list."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job has failed."""

    type: str
    """The name of the exception's class."""
    message: str
    """The exception's message."""
    traceback: str = ""
    """The exception's traceback, as text."""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class BadCall(ValueError):
    """A payload isn't a call of a task."""


def encode(value: Any) -> bytes:
    """A value as JSON. Raises TypeError if it can't be."""
    if msgspec is not None:
        found: bytes = msgspec.json.encode(value, enc_hook=plain_of)
        return found
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode(data: bytes) -> Any:
    """The value of JSON. Raises ValueError if it is none."""
    if msgspec is not None:
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
    return json.loads(data)


def encode_call(call: Call) -> bytes:
    """A call, as a payload."""
    found: dict[str, Any] = {"task": call.task}
    for name in ("args", "kwargs", "headers", "results", "gather"):
        if value := getattr(call, name):
            found[name] = value
    return encode(found)


def decode_call(payload: bytes) -> Call:
    """The call in a payload."""
    try:
        found = decode(payload)
    except ValueError as error:
        raise BadCall(f"the payload isn't JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("task"), str):
        raise BadCall('the payload isn\'t a call of a task: expected {"task": NAME, "args": [...]}')
    args, kwargs = found.get("args") or (), found.get("kwargs") or {}
    headers, results = found.get("headers") or {}, found.get("results") or ()
    if not (
        isinstance(args, list | tuple)
        and isinstance(kwargs, dict)
        and isinstance(headers, dict)
        and isinstance(results, list | tuple)
    ):
        raise BadCall(f"the payload of a call of {found['task']} has args or kwargs of a wrong type")
    return Call(found["task"], tuple(args), kwargs, headers, tuple(results), bool(found.get("gather")))


def encode_failure(error: BaseException) -> bytes:
    """An exception, as the result of a job that failed."""
    text = ""
    if not isinstance(error, Retry | Discard) or error.__cause__ is not None:
        text = "".join(traceback.format_exception(type(error), error, _of_task(error.__traceback__)))
        text = text[-_TRACEBACK_BYTES:]
    message = str(error)[:_MESSAGE_CHARS]
    failure = {"type": type(error).__name__, "message": message, "traceback": text}
    return json.dumps({"error": failure}, separators=(",", ":")).encode()


def _of_task(found: TracebackType | None) -> TracebackType | None:
    """A traceback without the worker's own frames."""
    own = found
    while own is not None:
        code, own = own.tb_frame.f_code, own.tb_next
        if code.co_filename == _RUNNER and own is not None and _is_of_others(own):
            return own
    return found


def _is_of_others(found: TracebackType) -> bool:
    name = found.tb_frame.f_code.co_filename
    return name != _RUNNER and not name.endswith("concurrent/futures/thread.py")


def decode_failure(data: bytes) -> Failure:
    """Why a job has failed, from its result. It may be any text: of a worker that isn't one of an app."""
    try:
        found = decode(data)["error"]
        return Failure(str(found["type"]), str(found["message"]), str(found.get("traceback") or ""))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        kind, _, message = data.decode("utf-8", "backslashreplace").partition(": ")
        return Failure(kind or "the job failed", message)
