"""A log of messages: topics, payloads and properties, one writer and any number of readers.

message.py     Message
writer.py      MessageLogWriter: buffer, flush, rotate
reader.py      MessageLogReader: read in order, or from a time
retention.py   which files may be removed
"""

from forelog.messages.message import Message
from forelog.messages.reader import MessageLogReader
from forelog.messages.retention import Retained, retain
from forelog.messages.writer import MessageLogWriter

__all__ = ["Message", "MessageLogReader", "MessageLogWriter", "Retained", "retain"]
