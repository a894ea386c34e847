"""The log of messages, as the broker reads it.

The modules:

    batch     MessageBatch: consecutive messages of one file, as columns
    clock     MessageClock: how old a message is
    history   History: the log's tail in memory, the rest from its files
"""
