"""Protocol Buffers varints, for the few messages that are put together by hand because they are hot."""

from __future__ import annotations


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


SMALL = tuple(_encode(value) for value in range(1 << 14))
"""The varints of one and two bytes; a tuple index costs a fifth of the loop."""


def varint(value: int) -> bytes:
    """`value`, not negative, as a varint."""
    return SMALL[value] if value < 1 << 14 else _encode(value)
