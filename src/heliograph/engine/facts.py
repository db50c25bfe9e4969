"""Everything that can happen in the broker, as a closed set of facts.

State changes only when a fact is applied, live and in recovery alike; the store keeps facts, not commands, so a later
bug fix cannot change what an old file means. A released fact never changes its fields' meaning; new fields go last and
have defaults.
"""

from __future__ import annotations

import enum

import msgspec

from heliograph.engine.dead_letter import DeadLetterReason
from heliograph.engine.message import Message
from heliograph.engine.settings import SubscriptionSettings, TopicSettings


class ReturnCause(enum.Enum):
    """Why a leased message came back."""

    NACKED = "nacked"
    EXPIRED = "expired"
    RELEASED = "released"  # the consumer's connection went away: no failure of the message


class _Fact(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """What all facts share."""


class TopicCreated(_Fact):
    name: str
    number: int
    settings: TopicSettings
    created_ns: int


class TopicDeleted(_Fact):
    """`clears_backlog`: in process the subscriptions' messages go too; over Pub/Sub they stay (design §5)."""

    name: str
    clears_backlog: bool


class SubscriptionCreated(_Fact):
    name: str
    number: int
    topic: str
    settings: SubscriptionSettings
    created_ns: int


class SubscriptionDeleted(_Fact):
    name: str


class MessagesPublished(_Fact):
    """`messages` have consecutive sequences. The store keeps them apart from the rest of the fact, and leaves out those
    that were trimmed meanwhile: a recovered fact tells by `first_sequence` and `last_sequence` what was published.
    Before it was stored they may be 0."""

    topic: str
    topic_number: int
    messages: list[Message]
    first_sequence: int = 0
    last_sequence: int = 0


class MessagesDropped(_Fact):
    """The subscription was at its capacity: these never reach it (spec 000, BR-022)."""

    subscription: str
    sequences: list[int]


class MessagesLeased(_Fact):
    subscription: str
    lease_number: int
    sequences: list[int]
    leased_ns: int
    deadline_ns: int
    consumer: str


class LeasesExtended(_Fact):
    subscription: str
    lease_number: int
    sequences: list[int]
    deadline_ns: int


class MessagesAcknowledged(_Fact):
    subscription: str
    sequences: list[int]


class MessagesReturned(_Fact):
    """Leased messages wait again; each not before its `available_at_ns` (0 = at once)."""

    subscription: str
    sequences: list[int]
    available_at_ns: list[int]
    cause: ReturnCause


class MessagesDeadLettered(_Fact):
    """Given up. `cause` is None when the message was not leased (TTL). They wait in the subscription: to be
    forwarded to the dead letter topic, or, where there is none, to be listed, retried or purged."""

    subscription: str
    sequences: list[int]
    reason: DeadLetterReason
    dead_lettered_ns: int
    cause: ReturnCause | None


class DeadLettersForwarded(_Fact):
    """They are durable in the dead letter topic, and leave the subscription."""

    subscription: str
    sequences: list[int]


class DeadLettersRetried(_Fact):
    """Back among the waiting with a fresh retry count, and without the expiry that some died of."""

    subscription: str
    sequences: list[int]


class DeadLettersPurged(_Fact):
    subscription: str
    sequences: list[int]


class MessagesPurged(_Fact):
    """Waiting messages that are gone for the subscription: purged, or past its retention."""

    subscription: str
    sequences: list[int]


Fact = (
    TopicCreated
    | TopicDeleted
    | SubscriptionCreated
    | SubscriptionDeleted
    | MessagesPublished
    | MessagesDropped
    | MessagesLeased
    | LeasesExtended
    | MessagesAcknowledged
    | MessagesReturned
    | MessagesDeadLettered
    | DeadLettersForwarded
    | DeadLettersRetried
    | DeadLettersPurged
    | MessagesPurged
)
