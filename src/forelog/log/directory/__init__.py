"""The files of a log: its segments, and the small files beside them.

directory.py   Directory: which segments there are, names and locks
segment.py     SegmentReader, SegmentWriter
detection.py   which log is at a path
tenants.py     what else may live in a directory
place.py       the part of a directory that the small files need

index.py       what is known of a sealed segment: NAME.SIZE.idx and .map
watermark.py   how far the log was synced: append.synced
end.py         where the log ends for readers while it is written: append.end
journal.py     a second copy of the log's end, where a sync is cheap: append.journal
spare.py       the next segment, open before it is needed: append.spare
tail.py        the segment that is appended to, and how a new one is made
removed.py     where removed segments ended: removed.ends
foreign.py     segments that another program has rewritten
trace.py       recognising a log at a position
"""
