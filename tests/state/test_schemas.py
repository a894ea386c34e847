"""Events and values of every kind of class, and old logs that are read after the class has changed."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from forelog.errors import BadEvent
from forelog.state import PersistentDict, StateLog

if TYPE_CHECKING:
    import attrs
else:
    attrs = pytest.importorskip("attrs")
pydantic = pytest.importorskip("pydantic")


class Size(enum.StrEnum):
    SMALL = "small"


def old_and_new(before: type, after: type) -> tuple[type, type]:
    """Two versions of a class under one name, as a program has them one after the other."""
    before.__name__ = after.__name__ = "Order"
    return before, after


def restored(path: Path, kind: type) -> list[Any]:
    found: list[Any] = []
    with StateLog(path, replay=found.append, enumerate=lambda _: None, types=[kind]):
        return found


def logged(path: Path, kind: type, *events: Any) -> None:
    with StateLog(path, replay=print, enumerate=lambda _: None, types=[kind]) as log:
        for event in events:
            log.update(event)


class Line(pydantic.BaseModel):  # type: ignore[name-defined]
    what: str
    price: Decimal


class Model(pydantic.BaseModel):  # type: ignore[name-defined]
    id: UUID
    at: datetime
    size: Size
    lines: list[Line]
    tags: set[str] = pydantic.Field(default_factory=set)
    raw: bytes = b""


@attrs.define
class Plain:
    id: int
    price: Decimal
    tags: list[str] = attrs.field(factory=list)


@attrs.frozen
class Frozen:
    id: int
    at: datetime


MODEL = Model(
    id=UUID(int=7),
    at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    size=Size.SMALL,
    lines=[Line(what="chips", price=Decimal("2.50"))],
    tags={"a", "b"},
    raw=b"\0\xff",
)
VALUES = [MODEL, Plain(1, Decimal("1.10"), ["x"]), Frozen(2, datetime(2026, 1, 2, tzinfo=UTC))]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_models_and_attrs_classes_come_back_as_events_and_as_values(tmp_path: Path, value: Any) -> None:
    kind = type(value)
    logged(tmp_path / "log", kind, value, value)
    assert restored(tmp_path / "log", kind) == [value, value]
    for name, values, kept in (
        ("dict", kind, value),
        ("list", list[kind], [value]),  # type: ignore[valid-type]
        ("maybe", kind | None, value),
    ):
        with PersistentDict(tmp_path / name, keys=str, values=values) as d:
            d["one"] = kept
            d.set("two", kept, ttl=1000)
        with PersistentDict(tmp_path / name, keys=str, values=values) as d:
            assert d.copy() == {"one": kept, "two": kept}
            assert type(d["one"]) is type(kept)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_without_its_type_a_value_is_refused_and_not_turned_into_another(tmp_path: Path, value: Any) -> None:
    with PersistentDict(tmp_path / "dict") as d:
        with pytest.raises(BadEvent, match="would come back as a dict"):
            d["one"] = value
        assert not d


def test_what_a_model_would_not_validate_again_is_refused(tmp_path: Path) -> None:
    class Positive(pydantic.BaseModel):  # type: ignore[name-defined]
        number: int = pydantic.Field(gt=0)

    with PersistentDict(tmp_path / "dict", keys=str, values=Positive) as d:
        with pytest.raises(BadEvent, match="greater than 0"):
            d["one"] = Positive.model_construct(number=-1)
        with pytest.raises(BadEvent):
            d["one"] = object()  # type: ignore[assignment]
        assert not d


# -- a class that has changed


@dataclass
class DataBefore:
    id: int
    name: str
    gone: int = 0


@dataclass
class DataAfter:
    id: int | str  # wider
    name: str
    tags: list[str] = field(default_factory=list)  # added


class StructBefore(msgspec.Struct):
    id: int
    name: str


class StructAfter(msgspec.Struct):
    id: float  # wider
    title: str = msgspec.field(name="name")  # renamed
    tags: list[str] = msgspec.field(default_factory=list)


@attrs.define
class AttrsBefore:
    id: int
    name: str


@attrs.define
class AttrsAfter:
    id: int | None
    name: str
    tags: list[str] = attrs.field(factory=list)


class ModelBefore(pydantic.BaseModel):  # type: ignore[name-defined]
    id: int
    name: str
    gone: int = 0


class ModelAfter(pydantic.BaseModel):  # type: ignore[name-defined]
    id: int | str
    title: str = pydantic.Field(validation_alias=pydantic.AliasChoices("title", "name"))
    tags: list[str] = pydantic.Field(default_factory=list)


CHANGES = [
    (DataBefore, DataAfter, DataAfter(7, "chips")),
    (StructBefore, StructAfter, StructAfter(7, "chips")),
    (AttrsBefore, AttrsAfter, AttrsAfter(7, "chips")),
    (ModelBefore, ModelAfter, ModelAfter(id=7, title="chips")),
]


@pytest.mark.parametrize(
    ("before", "after", "expected"), CHANGES, ids=["dataclass", "Struct", "attrs", "pydantic"]
)
def test_an_old_log_is_read_with_fields_added_renamed_removed_and_widened(
    tmp_path: Path, before: type, after: type, expected: Any
) -> None:
    old, new = old_and_new(before, after)
    logged(tmp_path / "log", old, old(id=7, name="chips"))
    assert restored(tmp_path / "log", new) == [expected]
    logged(tmp_path / "log", new, expected)
    assert restored(tmp_path / "log", new) == [expected, expected]
    with PersistentDict(tmp_path / "dict", values=old) as d:
        d["one"] = old(id=7, name="chips")
    with PersistentDict(tmp_path / "dict", values=new) as d:
        assert d["one"] == expected
        d["two"] = expected
        d.rotate()
    with PersistentDict(tmp_path / "dict", values=new) as d:
        assert d.copy() == {"one": expected, "two": expected}


def test_a_field_without_a_default_cannot_be_added_and_the_log_stays_as_it_is(tmp_path: Path) -> None:
    class After(msgspec.Struct):
        id: int
        name: str
        needed: str

    old, new = old_and_new(StructBefore, After)
    logged(tmp_path / "log", old, old(id=7, name="chips"))
    with pytest.raises(BadEvent, match="needed"):
        restored(tmp_path / "log", new)
    assert restored(tmp_path / "log", old) == [old(id=7, name="chips")]


def test_a_class_with_another_name_reads_what_the_old_one_wrote(tmp_path: Path) -> None:
    class Purchase(msgspec.Struct):
        id: int
        name: str

    old, _ = old_and_new(StructBefore, StructAfter)
    logged(tmp_path / "log", old, old(id=7, name="chips"))
    renamed = type("Order", (Purchase,), {})
    found = restored(tmp_path / "log", renamed)
    assert isinstance(found[0], Purchase)
    assert (found[0].id, found[0].name) == (7, "chips")
