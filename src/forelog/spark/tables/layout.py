"""The names of a table's own folders."""

from __future__ import annotations

__all__ = ["COMMITS", "FOLDER", "STAGING"]

FOLDER = "_forelog"
"""What is the ingest's own. Readers of Parquet ignore it, because of its name."""
COMMITS = f"{FOLDER}/commits"
STAGING = f"{FOLDER}/staging"
