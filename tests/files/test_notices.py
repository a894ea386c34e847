"""Log lines for operators: few, short, and each is one line."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog.cli.aside import OneLine
from forelog.serving.notices import CHARS_MAX, Notices, text


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(f"{record.levelname} {record.getMessage()}")


@pytest.fixture
def heard():
    logger = logging.Logger("test", logging.INFO)
    handler = Lines()
    logger.addHandler(handler)
    return logger, handler.lines


def test_a_line_has_the_event_and_its_fields(heard):
    notices = Notices("broker", logger=heard[0])
    notices.info("connected", "10.0.0.7", from_="10.0.0.7:5", user=None, client="a b", version=5, clean=True)
    assert heard[1] == ['INFO broker: connected from=10.0.0.7:5 user=- client="a b" version=5 clean=yes']


def test_what_a_client_sends_cant_begin_a_line_or_a_field(heard):
    notices = Notices("broker", logger=heard[0])
    notices.warning(
        "login refused", "1", client='x\nbroker: connected user="root"', user="-", topic="\x1b[2J\u202e"
    )
    assert heard[1] == [
        'WARNING broker: login refused client="x\\nbroker: connected user=\\"root\\"" user="-" '
        'topic="\\x1b[2J\\u202e"'
    ]


@given(st.text(max_size=3 * CHARS_MAX))
def test_every_value_is_one_printable_word_of_bounded_length(value):
    shown = text(value)
    assert shown.isprintable()
    assert len(shown) <= 10 * CHARS_MAX + 20
    if shown[0] != '"':
        assert " " not in shown
        assert "=" not in shown
        assert '"' not in shown
    else:
        inside = shown[1 : shown.rindex('"')]
        assert '"' not in inside.replace("\\\\", "").replace('\\"', "")


def test_a_line_of_any_logger_is_one_line():
    record = logging.LogRecord("forelog", logging.INFO, "", 0, "%s", ("x\n2026 INFO broker: forged\x1b",), None)
    shown = OneLine("%(levelname)s %(message)s").format(record)
    assert shown == "INFO x\\n2026 INFO broker: forged\\x1b"


def test_one_address_gets_a_few_lines_and_then_a_count(heard):
    now = [0.0]
    notices = Notices("broker", logger=heard[0], burst=3, window_seconds=10, clock=lambda: now[0])
    for number in range(100):
        notices.warning("login refused", "1.1.1.1", number=number)
    notices.warning("login refused", "2.2.2.2", number=0)
    notices.warning("publish refused", "1.1.1.1", number=0)
    assert len(heard[1]) == 5
    notices.sweep()
    assert len(heard[1]) == 5
    now[0] = 10.0
    notices.sweep()
    assert heard[1][5:] == ["WARNING broker: login refused and 97 more from=1.1.1.1"]
    notices.warning("login refused", "1.1.1.1", number=1)
    assert len(heard[1]) == 7, "a new window has lines again"
    assert notices.counts == {"login refused": 102, "publish refused": 1}


def test_many_addresses_together_are_limited_too_in_lines_and_in_memory(heard):
    notices = Notices("broker", logger=heard[0], burst=3, lines_max=10, keys_max=50)
    for number in range(10_000):
        notices.warning("login refused", f"10.0.{number >> 8}.{number & 255}", number=number)
    assert len(heard[1]) == 10
    assert len(notices._seen) <= 51
    assert len(notices._more) <= 51
    notices.close()
    assert len(heard[1]) <= 10 + 21
    left_out = sum(int(line.split(" and ")[1].split()[0]) for line in heard[1][10:])
    assert left_out == 9990, "each is in a line, or in a count"


def test_what_nobody_hears_is_counted_all_the_same(heard):
    heard[0].setLevel(logging.ERROR)
    notices = Notices("broker", logger=heard[0])
    notices.info("connected", "1")
    assert notices.counts == {"connected": 1}
    assert heard[1] == []
