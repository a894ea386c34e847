"""Tries an installed forelog without a test runner: a wheel has to pass this on the machine it is made for."""

import tempfile

from forelog import Stream


def main() -> None:
    """Write a log, and read it as it was written."""
    with tempfile.TemporaryDirectory() as folder:
        stream = Stream(f"{folder}/orders.log")
        with stream.appender(sync="always") as log:
            positions = log.append_many([b"one", b"two", b"three"])
        with stream.cursor(start=positions[1]) as cursor:
            found = [record.payload for record in cursor]
        if found != [b"two", b"three"]:
            raise SystemExit(f"expected two records after the first, found {found}")


if __name__ == "__main__":
    main()
