"""The frame reader takes any cut of the stream, and anything at all without falling over."""

from __future__ import annotations

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.server.grpc.frames import FrameReader, frame
from heliograph.server.grpc.status import INTERNAL, INVALID_ARGUMENT, UNIMPLEMENTED, RpcError


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def compressed(message: bytes) -> bytes:
    packed = gzip.compress(message)
    return b"\1" + len(packed).to_bytes(4, "big") + packed


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(0, 5_000), max_size=20))
def test_messages_come_back_however_the_stream_is_cut(messages: list[bytes], places: list[int]) -> None:
    reader = FrameReader()
    received = [message for piece in cut(b"".join(map(frame, messages)), places) for message in reader.feed(piece)]
    assert received == messages
    assert reader.is_between_messages


@given(st.lists(st.tuples(st.binary(max_size=200), st.booleans()), max_size=8), st.lists(st.integers(0, 5_000)))
def test_compressed_and_plain_messages_may_mix(messages: list[tuple[bytes, bool]], places: list[int]) -> None:
    reader = FrameReader(b"gzip")
    stream = b"".join(compressed(message) if packed else frame(message) for message, packed in messages)
    assert [m for piece in cut(stream, places) for m in reader.feed(piece)] == [message for message, _ in messages]


@given(st.lists(st.binary(max_size=100), max_size=20), st.sampled_from([b"identity", b"gzip", b"deflate", b"br"]))
def test_garbage_is_refused_or_taken_for_messages_and_nothing_else(pieces: list[bytes], encoding: bytes) -> None:
    reader = FrameReader(encoding, bytes_max=1_000)
    messages: list[bytes] = []
    codes: list[int] = []
    try:
        for piece in pieces:
            messages += reader.feed(piece)
    except RpcError as error:
        codes.append(error.code)
    assert all(len(message) <= 1_000 for message in messages)
    assert set(codes) <= {INTERNAL, INVALID_ARGUMENT, UNIMPLEMENTED}


def test_deflate_is_understood() -> None:
    packed = zlib.compress(b"hello")
    assert FrameReader(b"deflate").feed(b"\1" + len(packed).to_bytes(4, "big") + packed) == [b"hello"]


def refused(stream: bytes, encoding: bytes = b"identity", bytes_max: int = 100) -> int:
    with pytest.raises(RpcError) as raised:
        FrameReader(encoding, bytes_max).feed(stream)
    return raised.value.code


def test_a_message_that_is_too_large_is_refused_at_its_head() -> None:
    assert refused(b"\0" + (101).to_bytes(4, "big")) == INVALID_ARGUMENT


def test_a_message_that_grows_too_large_when_decompressed_is_refused() -> None:
    assert refused(compressed(b"\0" * 10_000_000), b"gzip", 1_000_000) == INVALID_ARGUMENT


def test_a_compressed_message_that_is_cut_short_is_refused() -> None:
    packed = gzip.compress(b"hello" * 10)[:-3]
    assert refused(b"\1" + len(packed).to_bytes(4, "big") + packed, b"gzip") == INTERNAL


def test_an_unknown_compression_is_unimplemented() -> None:
    assert refused(b"\1\0\0\0\1x", b"br") == UNIMPLEMENTED


def test_a_compressed_message_without_a_named_compression_is_refused() -> None:
    assert refused(compressed(b"x")) == INTERNAL
