"""Packet ids and topic aliases. Numbers are those of the MQTT 5.0 standard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog.broker.mqtt.aliases import InboundAliases, OutboundAliases
from forelog.broker.mqtt.ids import PACKET_ID_MAX, PacketIds
from forelog.errors import BadPacket


@given(st.lists(st.tuples(st.sampled_from(["take", "release", "reserve"]), st.integers(1, 12)), max_size=60))
def test_an_id_is_used_once_at_a_time(steps):
    """[MQTT-2.2.1-4] [MQTT-4.3.2-1] [MQTT-4.3.3-1]"""
    ids, used = PacketIds(), set()
    for action, packet_id in steps:
        if action == "take":
            taken = ids.take()
            assert 1 <= taken <= PACKET_ID_MAX
            assert taken not in used
            used.add(taken)
        elif action == "release":
            assert ids.release(packet_id) == (packet_id in used)
            used.discard(packet_id)
        else:
            assert ids.reserve(packet_id) == (packet_id not in used)
            used.add(packet_id)
        assert len(ids) == len(used)
        assert all(one in ids for one in used)


def test_all_65535_can_be_in_use_and_none_is_lost():
    ids = PacketIds()
    for packet_id in (3, 65_535, 40_000):
        ids.reserve(packet_id)
    taken = [ids.take() for _ in range(PACKET_ID_MAX - 3)]
    assert sorted([*taken, 3, 65_535, 40_000]) == list(range(1, PACKET_ID_MAX + 1))
    assert (ids.take(), ids.take(), len(ids)) == (0, 0, PACKET_ID_MAX)
    for packet_id in (40_000, 65_535, 1, 3):
        ids.release(packet_id)
    assert [ids.take() for _ in range(5)] == [40_000, 65_535, 1, 3, 0]


def test_ids_are_used_again_before_new_ones_and_take_no_more_memory():
    ids = PacketIds()
    for _ in range(100_000):
        ids.release(ids.take())
    assert max(ids.take() for _ in range(3)) <= 3


@pytest.mark.parametrize("packet_id", [0, -1, 65_536])
def test_an_id_that_there_isnt_cant_be_reserved(packet_id):
    with pytest.raises(ValueError, match="expected 1 to 65535"):
        PacketIds().reserve(packet_id)


def test_an_alias_stands_for_the_topic_that_it_was_last_sent_with():
    """[MQTT-3.3.2-12]: all up to the maximum are taken."""
    aliases = InboundAliases(3)
    for alias in (1, 2, 3):
        assert aliases.resolve(f"t{alias}", alias) == f"t{alias}"
    assert [aliases.resolve("", alias) for alias in (3, 2, 1)] == ["t3", "t2", "t1"]
    assert aliases.resolve("new", 2) == aliases.resolve("", 2) == "new"


@pytest.mark.parametrize(("maximum", "alias", "code"), [(3, 4, 0x94), (3, 0, 0x94), (0, 1, 0x94), (3, 3, 0x82)])
def test_an_alias_that_cant_be_is_refused(maximum, alias, code):
    """[MQTT-3.3.2-8] [MQTT-3.3.2-9]; and one that stands for nothing [MQTT-3.3.2-7]."""
    with pytest.raises(BadPacket) as caught:
        InboundAliases(maximum).resolve("", alias)
    assert caught.value.reason_code == code


@given(st.integers(0, 4), st.lists(st.sampled_from("abcdefg"), max_size=30))
def test_what_one_side_shortens_the_other_understands(maximum, topics):
    """[MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-11]"""
    outbound, inbound = OutboundAliases(maximum), InboundAliases(maximum)
    shortened = 0
    for topic in topics:
        text, alias = outbound.shorten(topic)
        assert 0 <= alias <= maximum
        assert (inbound.resolve(text, alias) if alias else text) == topic
        shortened += not text
    firsts = list(dict.fromkeys(topics))[:maximum]
    assert shortened == sum(topics.count(topic) - 1 for topic in firsts)
