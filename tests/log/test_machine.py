"""Any sequence of anything, against a list: Hypothesis drives a log, kills it, cuts its power."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forelog import KeepLatest, Position, Stream
from forelog.testing import CrashDisk


class LogMachine(RuleBasedStateMachine):
    """The model is a list of (position, payload), of which the first `durable` survive a power loss."""

    @initialize(sector_bytes=st.sampled_from([64, 512]))
    def start(self, sector_bytes):
        self.disk = CrashDisk(sector_bytes=sector_bytes)
        self.model: list[tuple[Position, bytes]] = []
        self.durable = 0
        self.highest = Position(0, 0)
        self.log = None
        self.clock = 1000
        self.open("os")

    def stream(self) -> Stream:
        return Stream("log", files=self.disk, clock=lambda: self.clock)

    def open(self, policy):
        self.policy = policy
        self.log = self.stream().appender(sync=policy, segment_bytes=250)
        self.durable = len(self.model)

    def note(self, positions, payloads):
        for position, payload in zip(positions, payloads, strict=True):
            assert position > self.highest, "a position was given twice"
            self.highest = position
            self.model.append((position, payload))
        segment = self.highest.segment
        sealed = sum(position.segment < segment for position, _ in self.model)
        self.durable = len(self.model) if self.policy == "always" else max(self.durable, sealed)

    @rule(payload=st.binary(max_size=60))
    def append(self, payload):
        self.note([self.log.append(payload)], [payload])

    @rule(payloads=st.lists(st.binary(max_size=60), max_size=5))
    def append_many(self, payloads):
        self.note(self.log.append_many(payloads), payloads)

    @rule(step=st.integers(-5, 5))
    def clock_goes(self, step):
        self.clock += step

    @rule()
    def roll(self):
        self.log.roll()
        self.durable = len(self.model)

    @rule()
    def sync(self):
        self.log.sync()
        self.durable = len(self.model)

    @rule(policy=st.sampled_from(["os", "always"]))
    def close_and_reopen(self, policy):
        self.log.close()
        self.open(policy)

    @rule(policy=st.sampled_from(["os", "always"]))
    def kill_and_reopen(self, policy):
        self.disk = self.disk.killed()
        self.open(policy)

    @rule(policy=st.sampled_from(["os", "always"]), seed=st.integers(0, 1000))
    def lose_power_and_reopen(self, policy, seed):
        state = random.Random(seed).choice(list(self.disk.states(limit=8, seed=seed)))
        self.disk = state.disk
        count = len(self.read())
        assert self.durable <= count <= len(self.model)
        self.model = self.model[:count]
        self.open(policy)

    @rule(remainder=st.integers(0, 2))
    def clean(self, remainder):
        last = self.stream().segments()[-1].number
        before = len(self.model)
        kept = [
            one
            for i, one in enumerate(self.model)
            if one[0].segment == last or len(one[1]) % 3 != remainder or i < 0
        ]
        with self.stream().cleaner(blocking=False) as cleaner:
            report = cleaner.clean(lambda _, record: len(record.payload) % 3 == remainder)
        assert report.records_dropped == before - len(kept)
        self.durable -= sum(one not in kept for one in self.model[: self.durable])
        self.model = kept

    @rule()
    def clean_to_latest(self):
        last = self.stream().segments()[-1].number
        newest = {payload[:1]: position for position, payload in self.model}
        kept = [(p, payload) for p, payload in self.model if p.segment == last or newest[payload[:1]] == p]
        with self.stream().cleaner(blocking=False) as cleaner:
            cleaner.clean(KeepLatest(key=slice(0, 1)))
        self.durable -= sum(one not in kept for one in self.model[: self.durable])
        self.model = kept

    def read(self, **options) -> list[tuple[Position, bytes]]:
        with self.stream().cursor(**options) as cursor:
            return [(record.position, record.payload) for record in cursor]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), reverse=st.booleans())
    def read_a_range(self, data, reverse):
        start = data.draw(st.sampled_from(self.model))[0]
        until = data.draw(st.sampled_from(self.model))[0]
        expected = [one for one in self.model if start <= one[0] < until]
        assert self.read(start=start, until=until, reverse=reverse) == (expected[::-1] if reverse else expected)

    @invariant()
    def the_log_is_the_list(self):
        assert self.read() == self.model


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
