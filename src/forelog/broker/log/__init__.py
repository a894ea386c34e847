"""The log of messages, as the broker reads it.

The modules:

    batch.py    MessageBatch: consecutive messages of one file, as columns
    clock.py    MessageClock: how old a message is
    history.py  History: the log's tail in memory, the rest from its files
"""
