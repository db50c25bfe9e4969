"""What a batch consists of, for `Broker.publish_staged`."""

from __future__ import annotations

import msgspec


class StagedPart(msgspec.Struct, frozen=True, array_like=True):
    """Messages of a stage, sequences `first` to `last`, inclusive, that go to `topic`."""

    topic: str
    first: int
    last: int
