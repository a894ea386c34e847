"""The arguments of a task: checked where it is called, and converted to their types where it is done.

    @app.task
    def send(to: UUID, when: date, lines: list[Line]) -> Receipt: ...

Annotated types are those of msgspec, attrs classes, and models of pydantic. Without msgspec they are those that
JSON has.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

from forelog.errors import MissingExtra
from forelog.jobs.app.envelope import msgspec
from forelog.jobs.app.injection import dependencies_of
from forelog.jobs.client.attempt import Attempt
from forelog.state.models import of_plain, plain_of

_PLAIN = (Any, None, type(None), bool, int, float, str, list, dict, object)


class Arguments:
    """The parameters of a task's function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(function)
        self._name = getattr(function, "__qualname__", repr(function))
        self.dependencies = dependencies_of(function)
        """The factories of what it gets besides its arguments, by the names of the parameters."""
        given = {"return", *self.dependencies}
        self.attempt = next((name for name, hint in hints.items() if hint is Attempt and name not in given), None)
        """The parameter that gets the attempt, if there is one."""
        self._parameters = [
            parameter
            for name, parameter in signature.parameters.items()
            if name not in self.dependencies and name != self.attempt
        ]
        self._signature = signature.replace(parameters=self._parameters)
        self._types = {
            parameter.name: hints[parameter.name]
            for parameter in self._parameters
            if hints.get(parameter.name, Any) not in (Any, object)
        }
        self._positional = [
            self._types.get(parameter.name)
            for parameter in self._parameters
            if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        ]
        self._required = len(self._positional) + 1  # never known without a closer look
        if all(parameter.kind is Parameter.POSITIONAL_OR_KEYWORD for parameter in self._parameters):
            self._required = sum(parameter.default is Parameter.empty for parameter in self._parameters)
        self._rest = self._types.get(self._of_kind(Parameter.VAR_POSITIONAL))
        self._names = self._types.get(self._of_kind(Parameter.VAR_KEYWORD))
        self.returns = hints.get("return", Any)
        """The type of the result."""
        for wanted in (*self._types.values(), self.returns):
            _check_type(self._name, wanted)

    def _of_kind(self, kind: Any) -> str:
        return next((parameter.name for parameter in self._parameters if parameter.kind is kind), "")

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError if the task can't be called with these."""
        try:
            if kwargs or not self._required <= len(args) <= len(self._positional):
                self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        if msgspec is not None and self._types:
            self.load(_builtins(args), _builtins(kwargs))

    def load(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of JSON's types, converted to those of the parameters."""
        if not self._types or msgspec is None:
            return list(args), dict(kwargs)
        positional = self._positional
        loaded = [
            self._convert(
                value, positional[number] if number < len(positional) else self._rest, f"argument {number + 1}"
            )
            for number, value in enumerate(args)
        ]
        named = {
            name: self._convert(value, self._types.get(name, self._names), name) for name, value in kwargs.items()
        }
        return loaded, named

    def _convert(self, value: Any, wanted: Any, what: str) -> Any:
        if wanted is None or type(value) is wanted:
            return value
        try:
            return convert(value, wanted)
        except (ValueError, TypeError) as error:
            raise TypeError(f"{self._name}: {what}: {error}") from None


def convert(value: Any, wanted: Any) -> Any:
    """A value of JSON's types as one of this type."""
    if msgspec is None or wanted is Any:
        return value
    return msgspec.convert(value, wanted, dec_hook=of_plain, str_keys=True)


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=plain_of, str_keys=True)


def _check_type(name: str, wanted: Any) -> None:
    if msgspec is None and wanted not in _PLAIN and typing.get_origin(wanted) not in (list, dict):
        raise MissingExtra.needed(
            "msgspec", by=f"a task with arguments of other types than JSON's ({name})", extra="jobs"
        )
