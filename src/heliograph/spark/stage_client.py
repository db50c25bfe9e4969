"""Stages messages at a broker and has them published, over HTTP (`heliograph.server.staging`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from heliograph.spark.door import Address, Door, persistently
from heliograph.wire.arrow import MEDIA_TYPE


class Part(NamedTuple):
    """Messages of a stage, sequences `first` to `last`, inclusive, that go to `topic`."""

    topic: str
    first: int
    last: int


class StageClient:
    """One stage at a broker. Holds no connection between calls, so it can be pickled.

    Args:
        address: of the broker.
        stage: its name.
    """

    def __init__(self, address: Address, stage: str) -> None:
        self._door = Door(address)
        self._stage = stage

    def write(self, topic: str, batch: pa.RecordBatch) -> Part:
        """Stage a record batch with columns of `heliograph.wire.arrow.STAGED_SCHEMA`, durably. One that is staged
        twice, since an answer was lost, is published once: only what is answered belongs to a batch.

        Raises:
            TopicNotFound, MessageTooLarge, Unavailable.
            InvalidArgument: a message is none that the topic may have, by its schema for instance.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        body = sink.getvalue().to_pybytes()
        wanted = {"stage": self._stage, "topic": topic}
        found = persistently(lambda: self._door.post_bytes("/api/v1/staging/write", body, MEDIA_TYPE, wanted))
        return Part(topic, int(found["first"]), int(found["last"]))

    def publish(self, writer: str, batch: int, parts: Sequence[Part], max_messages: int) -> tuple[int, int]:
        """Publish up to so many of a batch. Returns how many were published now, and how many are left. Raises:
        TopicNotFound, FailedPrecondition, QueueFull, Unavailable."""
        request = {
            "writer": writer,
            "batch": batch,
            "stage": self._stage,
            "parts": parts,
            "max_messages": max_messages,
        }
        found = persistently(lambda: self._door.post("/api/v1/staging/publish", request))
        return int(found["published"]), int(found["left"])

    def drop(self) -> None:
        """What is staged is never published. Raises: Unavailable."""
        persistently(lambda: self._door.post("/api/v1/staging/drop", {"stage": self._stage}))
