"""CRC-32C: the oracle for `include/crc32c.h`."""

from __future__ import annotations

from typing import Any


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def crc32c(data: Any, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    table = _TABLE
    for byte in memoryview(data).cast("B"):
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def crc32c_portable(data: Any, crc: int = 0) -> int:
    return crc32c(data, crc)


def crc32c_hardware() -> bool:
    return False
