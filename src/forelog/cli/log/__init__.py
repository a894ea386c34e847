"""The commands that work on one log, a module each.

append.py      records from standard input
dump.py        records, one per line
verify.py      check every byte
repair.py      show how to repair a log, and do it
backup.py      copy a log while it is in use
stats.py       segments, sizes and rates
clean.py       forget records
convert.py     the same content in another format
bench.py       measure the log, and the disk below it
datapoints.py  what commands show of a log in M3's format
messages.py    what commands show of a log of messages
histogram.py   records and bytes over time, in bounded memory
"""
