"""`forelog broker pub` and `sub`: messages from and to a terminal."""

from __future__ import annotations

import argparse
import base64
import contextlib
import sys
import time
from typing import Any

from forelog.broker.flow.translation import LOGGED
from forelog.broker.mqtt.packets import Publish
from forelog.broker.mqtt.topics import is_topic_name, parse_filter, replay_since_ns
from forelog.cli import codes, options
from forelog.cli.broker.mqtt_client import BrokerClient
from forelog.cli.output import in_json, print_json
from forelog.errors import BadPacket, TimeOutOfRange
from forelog.times import format_time

_LINE_BYTES_MAX = 16 << 20


def add_options(name: str, parser: options.CommandParser) -> None:
    """Add the options of `pub` or `sub`."""
    if name == "pub":
        parser.add("""
            topic TOPIC        the topic
            [message MESSAGE]  the payload; without it each line of standard input is a message
            --retain           have the broker keep the message for later subscribers; an empty one removes it
            --expiry AGE       don't deliver the message after this time
        """)
    else:
        parser.add("""
            filters FILTER ...  the topics: + is one level, a last # the rest
            --since TIME        begin with past messages: since a time, -15m, or all
            --count N           end after N messages
            --wait SECONDS      end if no message comes for this long
            --session AGE       how long the broker keeps messages while this client is away; needs --client-id
            --no-retained       leave out retained messages
        """)
    parser.set_types(
        expiry=options.some_seconds,
        count=options.positive_count,
        wait=options.seconds,
        session=options.some_seconds,
    )
    parser.add_argument(
        "-q", "--qos", type=int, choices=(0, 1, 2), default=1, help="quality of service (default: 1)"
    )


def run(chosen: argparse.Namespace, client: BrokerClient) -> int:
    """Publish, or print."""
    return _pub(chosen, client) if chosen.subcommand == "pub" else _sub(chosen, client)


def _pub(chosen: argparse.Namespace, client: BrokerClient) -> int:
    if not is_topic_name(chosen.topic):
        raise codes.UsageError(f"{chosen.topic!r} isn't a topic to publish to: it is empty, or has + or # in it")
    expiry = None if chosen.expiry is None else max(int(chosen.expiry), 1)
    count = 0
    if chosen.message is not None:
        messages: Any = [chosen.message.encode("utf-8", "surrogateescape")]
    else:
        messages = _lines()
    for message in messages:
        client.publish(chosen.topic, message, qos=chosen.qos, retain=chosen.retain, expiry=expiry)
        count += 1
    client.flush()
    if chosen.json:
        print_json({"topic": chosen.topic, "messages": count, "qos": chosen.qos})
    return codes.FINE


def _lines() -> Any:
    stdin: Any = getattr(sys.stdin, "buffer", sys.stdin)
    while line := stdin.readline(_LINE_BYTES_MAX + 1):
        if len(line) > _LINE_BYTES_MAX:
            raise codes.InputError(f"a line of standard input has more than {_LINE_BYTES_MAX} bytes")
        yield line.rstrip(b"\n")


def _sub(chosen: argparse.Namespace, client: BrokerClient) -> int:
    wanted = list(chosen.filters)
    if chosen.since is not None:
        wanted = [f"$replay/{chosen.since}/{name}" for name in wanted]
    for name in wanted:
        try:
            when = parse_filter(name).when
            if when is not None:
                replay_since_ns(when, now_ns=time.time_ns())
        except BadPacket as error:
            raise codes.UsageError(error.why) from None
        except (TimeOutOfRange, OverflowError) as error:
            raise codes.UsageError(f"{name}: {error}") from None
    # Who comes back to a session has got what was retained already.
    handling = 2 if chosen.no_retained else 1 if chosen.session else 0
    client.subscribe(wanted, qos=chosen.qos, retain_handling=handling)
    left = chosen.count
    with contextlib.suppress(KeyboardInterrupt):
        while left is None or left > 0:
            message = client.receive(chosen.wait)
            if message is None:
                break
            _show(message, chosen.json)
            left = None if left is None else left - 1
    return codes.FINE


def _show(message: Publish, as_json: bool) -> None:
    """Lines of topic and payload, or of JSON, with a payload that isn't text in base64."""
    if not as_json:
        sys.stdout.flush()
        out = getattr(sys.stdout, "buffer", None)
        line = message.topic.encode() + b" " + message.payload + b"\n"
        if out is None:
            sys.stdout.write(line.decode(errors="replace"))
        else:
            out.write(line)
        sys.stdout.flush()
        return
    shown: dict[str, Any] = {"time": format_time(time.time_ns()), "topic": message.topic}
    shown |= in_json("payload", message.payload)
    shown |= {"qos": message.qos, "retain": message.retain}
    told = [(name, value) for name, value in message.properties.get("user_properties", []) if name == LOGGED]
    if told:
        shown["logged"] = told[-1][1]
    properties: dict[str, Any] = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in message.properties.items()
    }
    if properties:
        shown["properties"] = properties
    print_json(shown)
    sys.stdout.flush()
