"""These need pyarrow; Polars and DuckDB where a test says so."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
