"""A worker's own connection: outcomes and a lease in one write, and so in one turn of the server and one sync."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from forelog.errors import ConnectionLost, JobError
from forelog.jobs.client.connections import Connection
from forelog.jobs.client.endpoint import Endpoint, reason_of
from forelog.jobs.client.requests import Request
from forelog.jobs.client.shift import Delivery, Shift

_TRUSTED_SECONDS = 1.0
"""A connection that was used so recently is used again without a look whether it still stands."""


class Link:
    """A connection for one thread of a worker. It is made when it is needed, and made again after it broke."""

    def __init__(self, shift: Shift, endpoint: Endpoint, timeout: float, connect_timeout: float) -> None:
        self._shift = shift
        self._endpoint = endpoint
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._connection: Connection | None = None
        self._used = 0.0

    def exchange(self, deliveries: Sequence[Delivery], lease: Request[Any] | None = None) -> Any:
        """Send outcomes, and a lease behind them. Returns the value of the lease.

        Each outcome is settled, or left to the shift's keeper. Raises the error of the lease.
        """
        settled = 0
        taken: list[Delivery] = []
        try:
            connection = self._open()
        except (OSError, JobError) as error:
            self._shift.broken(deliveries, error, unknown=False)
            raise
        try:
            data = [delivery.request.data for delivery in deliveries]
            if lease is not None:
                data.append(lease.data)
            connection.send(b"".join(data), self._timeout)
            for delivery in deliveries:
                reply = connection.reply(delivery.request.kind, self._timeout)
                settled += 1
                if reply is True:
                    taken.append(delivery)
                else:
                    self._shift.refused(delivery, reply)
            self._used = time.monotonic()
            if lease is None:
                return None
            if taken:  # before the lease waits
                self._shift.delivered(taken)
                taken = []
            reply = connection.reply(lease.kind, self._timeout + lease.wait_seconds)
            self._used = time.monotonic()
        except (OSError, JobError) as error:
            self.close()
            self._shift.broken(deliveries[settled:], error, unknown=True)
            if isinstance(error, JobError):
                raise
            raise ConnectionLost(f"the connection to {self._endpoint} broke: {reason_of(error)}") from error
        finally:
            if taken:
                self._shift.delivered(taken)
        return lease.value(reply)

    def call(self, requests: Sequence[Request[Any]]) -> list[Any]:
        """Send requests. Returns their values, or errors."""
        connection = self._open()
        found = []
        try:
            connection.send(b"".join([request.data for request in requests]), self._timeout)
            found += [connection.reply(request.kind, self._timeout) for request in requests]
            self._used = time.monotonic()
        except BaseException:
            self.close()
            raise
        return found

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        connection = self._connection
        if connection is not None:
            if time.monotonic() - self._used < _TRUSTED_SECONDS or connection.is_alive():
                return connection
            self.close()
        self._connection = connection = Connection(self._endpoint, self._connect_timeout)
        return connection
