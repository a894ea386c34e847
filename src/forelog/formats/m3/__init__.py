"""M3's commit log: many series of numbers over time.

format.py     M3: chunks, file names, and what is written
values.py     Series, Datapoint, Entry, Unit
entries.py    the blocks of a log as entries
columns.py    entries as Arrow columns
summary.py    counting entries
exchange.py   entries to JSON and back
"""

from forelog.formats.m3.format import CHUNK_BYTES, M3, MESSAGE_REASONS
from forelog.formats.m3.values import Datapoint, Entry, Series, Unit

__all__ = ["CHUNK_BYTES", "M3", "MESSAGE_REASONS", "Datapoint", "Entry", "Series", "Unit"]
