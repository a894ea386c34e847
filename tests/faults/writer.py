"""A process that appends and acknowledges on its standard output, until it is killed or the disk is full.

It writes `position serial` after each append returned: what was read from it must be in the log.
"""

from __future__ import annotations

import sys

from forelog import AppenderFailed, Stream, SyncPolicy, WriteFailed


def main() -> None:
    path, policy, first = sys.argv[1], SyncPolicy(sys.argv[2]), int(sys.argv[3])
    with Stream(path).appender(sync=policy, segment_bytes=20_000) as log:
        print("open", flush=True)
        serial = first
        while True:
            payload = b"%d:" % serial + b"p" * (serial * 37 % 900)
            try:
                position = log.append(payload) if serial % 5 else log.append_many([payload])[0]
            except (AppenderFailed, WriteFailed) as error:
                print(f"error {type(error).__name__} {error.errno}", flush=True)
                return
            print(f"{position} {serial}", flush=True)
            serial += 1


if __name__ == "__main__":
    main()
