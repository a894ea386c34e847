"""Publish and subscribe, with a log as the memory: nobody misses a message.

message_log.py     Message, and what readers and writers share
message_writer.py  MessageLogWriter: buffer, flush, rotate
message_reader.py  MessageLogReader: read on, or from a time
retention.py       which files may go
"""

from chiplog.broker.message_log import Message
from chiplog.broker.message_reader import MessageLogReader
from chiplog.broker.message_writer import MessageLogWriter
from chiplog.broker.retention import Retained

__all__ = ["Message", "MessageLogReader", "MessageLogWriter", "Retained"]
