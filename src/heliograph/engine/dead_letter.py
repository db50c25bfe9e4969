"""What becomes of a message that cannot be processed."""

from __future__ import annotations

import enum

import msgspec


class DeadLetterReason(enum.Enum):
    """Why a message became a dead letter (spec 003)."""

    MAX_RETRIES_EXCEEDED = "MaxRetriesExceeded"
    EXPLICIT_NACK = "ExplicitNack"
    TTL_EXPIRED = "TTLExpired"


class DeadLetterPolicy(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """When a message is given up, and where it goes.

    Args:
        topic: the topic that receives it; None = the subscription keeps it itself, to be listed, retried or purged.
        max_delivery_attempts: after so many failed deliveries (queues: max_retries + 1).
        kept_max: how many a subscription keeps itself; beyond it the oldest goes, and is counted.
        source_attributes: the forwarded message tells where it comes from in four attributes, and gets a publish time
            of its own, as over Pub/Sub; else everything is preserved (design §5).
    """

    topic: str | None
    max_delivery_attempts: int
    kept_max: int = 10_000
    source_attributes: bool = False


class DeadLetter(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message that a subscription gave up.

    Args:
        sequence: its place in the topic's log.
        reason: why.
        failures: how often a delivery of it failed.
        dead_lettered_ns: when.
    """

    sequence: int
    reason: DeadLetterReason
    failures: int
    dead_lettered_ns: int
