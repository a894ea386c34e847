"""Commits of an ingest as snapshots of an Iceberg table, through `pyiceberg`, without Spark's jars.

    WAREHOUSE/iceberg.db                    the catalog, in SQLite, unless another one is given
    WAREHOUSE/orders/                       the table's folder, with the files of all commits
    WAREHOUSE/orders/metadata/              Iceberg's metadata

The files are in their places before Iceberg gets them. One transaction adds the snapshot, with the positions of
the logs and the commit's number in its properties, and sets the number in the properties of the table, which
outlive the snapshot. After a kill, the number shows whether Iceberg has the commit.

Files don't contain the partition column: Iceberg knows its value for each file, and readers fill it in. A table
that is partitioned by date is partitioned by the day of its time column, and has no column `date`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from forelog.errors import BadOption, CatalogFailed, ForelogError, MissingExtra
from forelog.spark.remote import is_remote
from forelog.spark.types import arrow_schema

if TYPE_CHECKING:
    from forelog.spark.tables.commits import Commit, DataFile, TableInfo, TableState
    from forelog.spark.tables.storage import Storage

CATALOG_FILE = "iceberg.db"
CATALOG_NAME = "default"  # pyiceberg's own name for a catalog that is given none
NAMESPACE = "default"
SNAPSHOTS_MAX = 100  # because pyiceberg copies their list a dozen times per commit
_SNAPSHOTS_KEPT = 50
_ATTEMPTS = 10
_LOCKED_SECONDS = 60
_EPOCH = date(1970, 1, 1)
_ID, _NUMBER, _POSITIONS = "forelog.table", "forelog.commit", "forelog.positions"


def place_of(path: str, catalog: str | None, name: str | None) -> tuple[str, str]:
    """The catalog of a table and its name there: as given, or the defaults."""
    if catalog is None and is_remote(path):
        raise BadOption(f"{path}: an Iceberg table in a bucket needs a catalog: give its address or its name")
    if catalog is None:
        catalog = f"sqlite:///{os.path.dirname(path)}/{CATALOG_FILE}"
    elif catalog.startswith("sqlite:///"):
        catalog = f"sqlite:///{os.path.abspath(catalog.removeprefix('sqlite:///'))}"
    elif urlsplit(catalog).password:
        raise BadOption("a catalog's address must not have a password: put it into pyiceberg's configuration")
    if name is None:
        name = f"{NAMESPACE}.{re.sub(r'[^0-9A-Za-z_]+', '_', os.path.basename(path)).strip('_') or 'table'}"
    elif not re.fullmatch(r"[^.\s]+(\.[^.\s]+)+", name):
        raise BadOption(f"{name!r} is not the name of an Iceberg table: expected NAMESPACE.NAME")
    return catalog, name


class Iceberg:
    """The format of Iceberg tables. `catalog` and `name` are for a new table."""

    keeps_removed = True

    def __init__(self, catalog: str | None = None, name: str | None = None) -> None:
        try:
            import pyiceberg.catalog
            import pyiceberg.io.pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingExtra.needed("pyiceberg", by="an Iceberg table", extra="iceberg") from error
        self._wanted = catalog, name
        self._catalogs: dict[str, Any] = {}

    def check_new(self, storage: Storage) -> None:
        names = sorted(name for name in storage.names("") if name != "_forelog")
        if names:
            raise BadOption(
                f"{storage.path} has files already that no ingest made, such as {names[0]}: choose a new folder"
            )
        catalog, name = place_of(storage.path, *self._wanted)
        with self._connected(catalog):
            if self._catalog(catalog).table_exists(name):
                raise BadOption(f"{catalog} has a table {name} already: choose another name")

    def announce(self, storage: Storage, commit: Commit) -> None:
        from pyiceberg.exceptions import CommitFailedException

        about = commit.about
        with self._connected(about.catalog):
            for attempt in range(1, _ATTEMPTS + 1):
                table = self._table(storage, about) or self._made_by(storage, commit)
                if _is_known(table, commit):
                    break
                try:
                    _tell(table, commit)
                except CommitFailedException:  # another writer was faster
                    if attempt == _ATTEMPTS:
                        raise

    def is_announced(self, storage: Storage, commit: Commit) -> bool:
        with self._connected(commit.about.catalog):
            table = self._table(storage, commit.about)
            return table is not None and _is_known(table, commit)

    def current(self, storage: Storage, state: TableState) -> list[str]:
        assert state.last is not None
        about = state.last.about
        with self._connected(about.catalog):
            table = self._table(storage, about) or self._made_by(storage, state.last)
            tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise BadOption(
                f"{storage.path} has rows that were deleted by position: read it with an Iceberg reader"
            )
        start = f"{storage.address}/"
        return [task.file.file_path.removeprefix(start) for task in tasks]

    @contextmanager
    def _connected(self, catalog: str | None) -> Iterator[None]:
        """Close the connections of the catalogs at the end. Turn any error of theirs into one line."""
        try:
            yield
        except (ForelogError, OSError, AssertionError, AttributeError, TypeError):
            raise
        except Exception as error:  # pyiceberg's errors have no common base
            reason = (str(error).splitlines() or [""])[0]
            raise CatalogFailed(f"the Iceberg catalog {catalog}: {reason or type(error).__name__}") from error
        finally:
            for one in self._catalogs.values():
                one.close()  # the next use connects again

    def _catalog(self, place: str) -> Any:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.sql import SqlCatalog

        from forelog.spark.tables.iceberg_files import bucket_properties

        if place not in self._catalogs:
            files = {"py-io-impl": "forelog.spark.tables.iceberg_files.SyncedFiles", **bucket_properties()}
            if place.startswith("sqlite:///"):
                uri = f"{place}?timeout={_LOCKED_SECONDS}"
                self._catalogs[place] = SqlCatalog(CATALOG_NAME, uri=uri, **files)
            elif "://" in place:
                self._catalogs[place] = load_catalog(CATALOG_NAME, uri=place, **files)
            else:
                self._catalogs[place] = load_catalog(place, **files)
        return self._catalogs[place]

    def _made_by(self, storage: Storage, commit: Commit) -> Any:
        """Make the table for the first commit; later ones need the existing table."""
        about = commit.about
        if commit.number > 1:
            raise CatalogFailed(
                f"the Iceberg catalog {about.catalog}: {about.name} is gone, whose files are in {storage.path}. "
                "Register it again with its last file of metadata, or choose a new folder"
            )
        return _create(self._catalog(str(about.catalog)), storage, about)

    def _table(self, storage: Storage, about: TableInfo) -> Any:
        """The table of an ingest; None if it isn't there."""
        from pyiceberg.exceptions import NoSuchTableError

        assert about.catalog is not None
        assert about.name is not None
        catalog = self._catalog(about.catalog)
        try:
            table = catalog.load_table(about.name)
        except NoSuchTableError:
            return None
        if table.properties.get(_ID) != about.id:
            raise BadOption(f"{about.name} in {about.catalog} is another table than that in {storage.path}")
        if table.location() != storage.address:
            raise BadOption(f"{about.name} in {about.catalog} is in {table.location()}, not in {storage.path}")
        return table


# -- tables


def _create(catalog: Any, storage: Storage, about: TableInfo) -> Any:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import assign_fresh_schema_ids

    assert about.name is not None
    converted = Catalog._convert_schema_if_needed(arrow_schema(about.columns, _columns(about)))
    schema = assign_fresh_schema_ids(converted)
    properties = {
        _ID: about.id,
        # Files are without Iceberg's numbers of columns.
        "schema.name-mapping.default": schema.name_mapping.model_dump_json(),
        # Statistics of the columns whose files have them; it warns of others.
        "write.metadata.metrics.default": "none",
        **{f"write.metadata.metrics.column.{name}": "truncate(16)" for name in _measured(about)},
        "commit.manifest-merge.enabled": "true",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    catalog.create_namespace_if_not_exists(Catalog.namespace_from(about.name))
    return catalog.create_table(
        about.name, schema, storage.address, partition_spec=_spec(schema, about), properties=properties
    )


def _columns(about: TableInfo) -> list[str]:
    return [name for name, kind in about.columns.items() if kind != "date"]


def _measured(about: TableInfo) -> list[str]:
    return [name for name in _columns(about) if about.columns[name] not in ("binary", "map<binary,binary>")]


def _spec(schema: Any, about: TableInfo) -> Any:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform, IdentityTransform

    by = about.partition_by
    if by is None:
        return PartitionSpec()
    if by != "date":
        return PartitionSpec(PartitionField(schema.find_field(by).field_id, 1000, IdentityTransform(), by))
    time = next(name for name, kind in about.columns.items() if kind == "timestamp")
    return PartitionSpec(PartitionField(schema.find_field(time).field_id, 1000, DayTransform(), f"{time}_day"))


# -- snapshots


def _is_known(table: Any, commit: Commit) -> bool:
    return int(table.properties.get(_NUMBER, 0)) >= commit.number or not (commit.added or commit.removed)


def _tell(table: Any, commit: Commit) -> None:
    told = {_NUMBER: str(commit.number), _POSITIONS: json.dumps(commit.positions)}
    known = {task.file.file_path: task.file for task in table.scan().plan_files()} if commit.removed else {}
    removed = [f"{table.location()}/{name}" for name in commit.removed]
    with table.transaction() as transaction:
        transaction.set_properties({_NUMBER: str(commit.number)})
        snapshot = transaction.update_snapshot(snapshot_properties=told)
        if not removed:
            with snapshot.merge_append() as append:
                for file in commit.added:
                    append.append_data_file(_described(table, commit.about, file))
        elif set(removed) <= set(known):  # else others have merged them, and the rows are there
            with snapshot.overwrite() as overwrite:
                for path in removed:
                    overwrite.delete_data_file(known[path])
                for file in commit.added:
                    overwrite.append_data_file(_described(table, commit.about, file))
    _expire(table)


def _described(table: Any, about: TableInfo, file: DataFile) -> Any:
    """A file as Iceberg lists it. `add_files` would look for the partition column in the file."""
    import pyarrow.parquet as pq
    from pyiceberg.io import pyarrow as described
    from pyiceberg.manifest import DataFile as Listed
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    address = f"{table.location()}/{file.path}"
    with table.io.new_input(address).open() as stream:
        metadata = pq.read_metadata(stream)
    schema = table.schema()
    statistics = described.data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=described.compute_statistics_plan(schema, table.properties),
        parquet_column_mapping=described.parquet_path_to_id_mapping(schema),
    )
    return Listed.from_args(
        content=DataFileContent.DATA,
        file_path=address,
        file_format=FileFormat.PARQUET,
        partition=Record() if about.partition_by is None else Record(_value(about, file.partition)),
        file_size_in_bytes=file.bytes,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _value(about: TableInfo, text: str | None) -> Any:
    assert about.partition_by is not None
    if text is None:
        return None
    kind = about.columns[about.partition_by]
    if kind == "date":
        return (date.fromisoformat(text) - _EPOCH).days
    if kind == "boolean":
        return text == "true"
    return text if kind == "string" else int(text)


def _expire(table: Any) -> None:
    """Remove the oldest snapshots, because every commit writes the list of all."""
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    if len(snapshots) <= SNAPSHOTS_MAX:
        return
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [one.snapshot_id for one in snapshots[:-_SNAPSHOTS_KEPT] if one.snapshot_id not in named]
    table.maintenance.expire_snapshots().by_ids(old).commit()
