"""Classes that msgspec doesn't know and that know themselves how to be plain values: models of pydantic.

They are recognized by their methods, so pydantic isn't imported. attrs classes need nothing: msgspec knows them.
A model is kept as a dict under the names that it is validated with, and comes back through `model_validate`, so
its validators and defaults apply to old logs too.

>>> class Celsius:
...     def __init__(self, degrees):
...         self.degrees = degrees
...     def model_dump(self, **_):
...         return {"degrees": self.degrees}
...     @classmethod
...     def model_validate(cls, plain):
...         return cls(**plain)
>>> plain_of(Celsius(20))
{'degrees': 20}
>>> of_plain(Celsius, {"degrees": 21}).degrees
21
>>> plain_of(object())
Traceback (most recent call last):
    ...
TypeError: object is neither a type that msgspec knows nor a model
"""

from __future__ import annotations

from typing import Any


def plain_of(value: Any) -> Any:
    """A model as plain values, for an encoder that meets a type that it doesn't know."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is neither a type that msgspec knows nor a model")
    return dump(mode="python", by_alias=True, round_trip=True)


def of_plain(kind: type, plain: Any) -> Any:
    """The model of these plain values, for a decoder. Its errors are those of `kind.model_validate`."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"{kind.__name__} is neither a type that msgspec knows nor a model")
    return validate(plain)
