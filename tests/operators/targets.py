"""The targets of a history: copies of them that are put back, and readers that are others than the writers."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyiceberg.catalog.sql import SqlCatalog
from tests.committed import committed
from tests.tables import read_table


@dataclass
class Targets:
    """Every place that the pipelines of a history write to. Targets are named as in `ids`."""

    folder: Path
    brokers: str
    clean: str
    database: Any
    pointers: dict[str, str] = field(default_factory=dict)
    """Of the Iceberg table: for each copy the metadata file."""
    put_back_as: dict[str, object] = field(default_factory=dict)
    """For each target that was put back: its state right after."""

    def save(self, target: str) -> None:
        """Keep a copy."""
        self._copy(target, "kept", keep=True)

    def put_back(self, target: str) -> bool:
        """Put the copy that is kept in place of the target; false where there is none."""
        if not self._has_copy(target, "kept"):
            return False
        self._copy(target, "undo", keep=True)
        self._copy(target, "kept", keep=False)
        self.put_back_as[target] = self._state(target)
        return True

    def undo(self, target: str) -> bool:
        """Undo the last `put_back`; false where there was none, or something was written since."""
        if target not in self.put_back_as or self.put_back_as.pop(target) != self._state(target):
            return False
        self._copy(target, "undo", keep=False)
        return True

    def ids(self, target: str) -> Counter[int]:
        """How often each record is in a target."""
        match target:
            case "iceberg":
                warehouse = self.folder / "lake/iceberg"
                catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
                found = catalog.load_table("shop.orders").scan().to_arrow()
            case "files":
                found = ds.dataset(self.folder / "lake/files", partitioning="hive").to_table(use_threads=False)
            case "pg":
                return Counter(row[0] for row in self.database.execute("SELECT order_id FROM orders").fetchall())
            case "out":
                return Counter(json.loads(m.value())["order_id"] for m in committed(self.brokers, self.clean))
            case _:
                if not (self.folder / "lake" / target / "_delta_log").is_dir():
                    return Counter()
                found = read_table(self.folder / "lake" / target)
        return Counter(found.column("order_id").to_pylist())

    def _copy(self, target: str, name: str, *, keep: bool) -> None:
        if target == "pg":
            self._copy_database(name, keep=keep)
        elif target == "iceberg":
            self._copy_pointer(name, keep=keep)
        else:
            here, kept = self.folder / "lake" / target, self.folder / f"{name}-{target}"
            source, goal = (here, kept) if keep else (kept, here)
            if source.is_dir():
                shutil.rmtree(goal, ignore_errors=True)
                shutil.copytree(source, goal)

    def _has_copy(self, target: str, name: str) -> bool:
        if target == "pg":
            return self.database.execute(f"SELECT to_regclass('{name}')").fetchone()[0] is not None
        return name in self.pointers if target == "iceberg" else (self.folder / f"{name}-{target}").is_dir()

    def _copy_database(self, name: str, *, keep: bool) -> None:
        run = self.database.execute
        if not keep:
            run(f"TRUNCATE orders, penstock.penstock_commits; INSERT INTO orders SELECT * FROM {name}")
            run(f"INSERT INTO penstock.penstock_commits SELECT * FROM {name}_commits")
        elif run("SELECT to_regclass('orders')").fetchone()[0] is not None:
            run(f"DROP TABLE IF EXISTS {name}, {name}_commits; CREATE TABLE {name} AS SELECT * FROM orders")
            run(f"CREATE TABLE {name}_commits AS SELECT * FROM penstock.penstock_commits")

    def _copy_pointer(self, name: str, *, keep: bool) -> None:
        now = self._pointer()
        if keep and now is not None:
            self.pointers[name] = now
        elif not keep:
            with sqlite3.connect(self.folder / "lake/iceberg/catalog.db") as connection:
                connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (self.pointers[name],))

    def _pointer(self) -> str | None:
        catalog = self.folder / "lake/iceberg/catalog.db"
        if not catalog.exists():
            return None
        with sqlite3.connect(catalog) as connection:
            row = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
        return row[0] if row else None

    def _state(self, target: str) -> object:
        """Something that every commit to a target changes."""
        if target == "pg":
            return sorted(map(str, self.database.execute("SELECT * FROM penstock.penstock_commits").fetchall()))
        if target == "iceberg":
            return self._pointer()
        return sorted(map(str, (self.folder / "lake" / target).rglob("*")))
