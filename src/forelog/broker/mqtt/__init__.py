"""The protocol, MQTT 3.1.1 and 5.0, without I/O: bytes to packets, and packets to bytes.

    packets.py     a small class for each of the fifteen packets
    reasons.py     reason codes, and which packet may have which
    properties.py  MQTT 5's properties, and which packet may have which
    wire.py        the fields of packets: numbers, texts, bytes
    decode.py      bytes to packets, strictly
    encode.py      packets to bytes
    topics.py      topics and filters: which are valid, $share and $replay, which match
    trie.py        Trie: subscriptions by filter, found by topic
    shapes.py      Shapes: the filters of one client, found by topic
    ids.py         PacketIds: packet ids in use
    aliases.py     topic aliases

Plain messages in bulk aren't decoded to packets: the kernel's `Inbox` turns them into bytes for the log. Sessions,
wills, retained messages and everything that needs a clock or a socket are in other packages.
"""
