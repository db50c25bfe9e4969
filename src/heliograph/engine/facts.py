"""Everything that can happen in the broker, as a closed set of facts.

State changes only when a fact is applied, live and in recovery alike; the store keeps facts, not commands, so a later
bug fix cannot change what an old file means. A released fact never changes its fields' meaning; new fields go last and
have defaults.
"""

from __future__ import annotations

import enum

import msgspec

from heliograph.engine.dead_letter import DeadLetter, DeadLetterReason
from heliograph.engine.message import Message
from heliograph.engine.ranges import Run
from heliograph.engine.settings import SubscriptionSettings, TopicSettings
from heliograph.engine.statistics import Totals


class ReturnCause(enum.Enum):
    """Why a leased message came back."""

    NACKED = "nacked"
    EXPIRED = "expired"
    RELEASED = "released"  # the consumer's connection went away: no failure of the message


class _Fact(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """What all facts share."""


class Details(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a fact tells beyond what recovery needs, where a broker keeps an event log.

    Args:
        at_ns: when it happened.
        topic_number: of the messages; their ids begin with it.
        attempts: which delivery of each message it is, or was, from 1; empty = the first of all.
        spans_us: microseconds that each message had waited since its publication (leased), or been leased (settled);
            a single one holds for all, empty = not known.
    """

    at_ns: int
    topic_number: int = 0
    attempts: list[int] = []
    spans_us: list[int] = []


class TopicCreated(_Fact, frozen=True):
    name: str
    number: int
    settings: TopicSettings
    created_ns: int


class TopicUpdated(_Fact, frozen=True):
    """All its settings are these from now on."""

    name: str
    settings: TopicSettings


class TopicDeleted(_Fact, frozen=True):
    """`clears_backlog`: in process the subscriptions are detached, and their messages go too; over Pub/Sub they stay,
    and are still delivered (design §5)."""

    name: str
    clears_backlog: bool


class SubscriptionCreated(_Fact, frozen=True):
    name: str
    number: int
    topic: str
    settings: SubscriptionSettings
    created_ns: int


class SubscriptionUpdated(_Fact, frozen=True):
    """All its settings are these for what happens from now on."""

    name: str
    settings: SubscriptionSettings
    updated_ns: int = 0


class SubscriptionUsed(_Fact, frozen=True):
    """Somebody pulled, waited or acknowledged at `used_ns`; told now and then only."""

    name: str
    used_ns: int


class SubscriptionDetached(_Fact, frozen=True):
    """It has nothing more to do with its topic; what it held is gone (pubsub-protocol.md 1.5.15)."""

    name: str


class SubscriptionSought(_Fact, frozen=True):
    """From now on exactly `held`, as `ranges.pack_runs` makes it, is not acknowledged, and what will be published; dead
    letters stay what they are. All leases, failures and delays are void. `target`: where to, for people."""

    subscription: str
    held: bytes
    sought_ns: int
    target: str = ""
    details: Details | None = None


class SubscriptionDeleted(_Fact, frozen=True):
    name: str


class SnapshotCreated(_Fact, frozen=True):
    """What the subscription had not acknowledged: `held`, as `ranges.pack_runs` makes it; and what its topic publishes
    from `next_sequence` on."""

    name: str
    subscription: str
    held: bytes
    next_sequence: int
    created_ns: int
    expires_ns: int
    labels: dict[str, str]
    resource: bytes


class SnapshotUpdated(_Fact, frozen=True):
    name: str
    expires_ns: int
    labels: dict[str, str]
    resource: bytes


class SnapshotDeleted(_Fact, frozen=True):
    """By somebody, or because it expired."""

    name: str


class DocumentPut(_Fact, frozen=True):
    """What a door keeps, opaque here; in a checkpoint each document that there is."""

    collection: str
    name: str
    value: bytes


class DocumentDeleted(_Fact, frozen=True):
    collection: str
    name: str


class MessagesPublished(_Fact, frozen=True):
    """`messages` have consecutive sequences. The store keeps them apart from the rest of the fact, which refers to them
    by `first_sequence` and `last_sequence`; before it was stored these may be 0. `matched`: by number of each
    subscription with a filter, which of the messages it takes; one that is not mentioned takes none. `disordered`:
    their publish times do not grow."""

    topic: str
    topic_number: int
    messages: list[Message]
    first_sequence: int = 0
    last_sequence: int = 0
    matched: dict[int, list[Run]] = {}
    details: Details | None = None
    disordered: bool = False


class DedupIdsNoted(_Fact, frozen=True):
    """The messages of these `sequences` were published under these ids; for ten minutes from `noted_ns` on, another
    message under one of them is the same message."""

    topic: str
    dedup_ids: list[str]
    sequences: list[int]
    noted_ns: int


class MessagesDropped(_Fact, frozen=True):
    """The subscription was at its capacity: these never reach it (spec 000, BR-022)."""

    subscription: str
    sequences: list[int]
    details: Details | None = None


class MessagesLeased(_Fact, frozen=True):
    subscription: str
    lease_number: int
    sequences: list[int]
    leased_ns: int
    deadline_ns: int
    consumer: str
    details: Details | None = None


class LeasesExtended(_Fact, frozen=True):
    subscription: str
    lease_number: int
    sequences: list[int]
    deadline_ns: int


class MessagesAcknowledged(_Fact, frozen=True):
    subscription: str
    sequences: list[int]
    details: Details | None = None


class MessagesReturned(_Fact, frozen=True):
    """Leased messages wait again; each not before its `available_at_ns` (empty: all at once)."""

    subscription: str
    sequences: list[int]
    available_at_ns: list[int]
    cause: ReturnCause
    details: Details | None = None


class MessagesDeadLettered(_Fact, frozen=True):
    """Given up. `cause` is None when the message was not leased (TTL). They wait in the subscription: to be
    forwarded to the dead letter topic, or, where there is none, to be listed, retried or purged."""

    subscription: str
    sequences: list[int]
    reason: DeadLetterReason
    dead_lettered_ns: int
    cause: ReturnCause | None
    details: Details | None = None


class DeadLettersForwarded(_Fact, frozen=True):
    """They are durable in the dead letter topic, and leave the subscription."""

    subscription: str
    sequences: list[int]


class DeadLettersRetried(_Fact, frozen=True):
    """Back among the waiting with a fresh retry count; those with an `expires_at_ns` (else 0) with that expiry."""

    subscription: str
    sequences: list[int]
    expires_at_ns: list[int]
    retried_ns: int = 0
    details: Details | None = None


class DeadLettersPurged(_Fact, frozen=True):
    subscription: str
    sequences: list[int]


class MessagesPurged(_Fact, frozen=True):
    """Waiting messages that are gone for the subscription: purged, or past its retention."""

    subscription: str
    sequences: list[int]
    details: Details | None = None


class CheckpointBegun(_Fact, frozen=True):
    """What follows recreates everything, in place of all facts before. `number`: the last that was given out."""

    number: int


class TopicRestored(_Fact, frozen=True):
    """`deleted` topics are here as long as subscriptions or snapshots are left of them. `dedup_ids` to sequence and
    instant, as `DedupIdsNoted` told them. `in_time_order`: publish times grew with the sequences, up to `newest_ns`."""

    name: str
    number: int
    settings: TopicSettings
    created_ns: int
    deleted: bool
    plain: bool
    next_sequence: int
    dedup_ids: dict[str, tuple[int, int]] = {}
    in_time_order: bool = True
    newest_ns: int = 0


class LeasesRestored(_Fact, frozen=True):
    """Part of a SubscriptionRestored: messages that share a lease."""

    number: int
    deadline_ns: int
    consumer: str
    held: list[Run]
    leased_ns: int = 0


class SubscriptionRestored(_Fact, frozen=True):
    """A subscription's whole state: where each message is that it has loaded and not settled.

    `ready` by priority band, as `fifo.pack` makes it; `behind` are those that wait for their key's turn, in its order;
    `delayed`, `expires` and `revived_ns` (when dead letters came back, where priorities age) are instants by sequence;
    `failures` by sequence; from `next_sequence` on nothing is loaded, and of what is below it not `earlier`, as
    `ranges.pack_runs` makes it. `first_sequence`: of the first message that was ever published to it.
    """

    name: str
    number: int
    topic_number: int
    settings: SubscriptionSettings
    created_ns: int
    detached: bool
    next_sequence: int
    lease_number: int
    ready: dict[int, bytes]
    behind: list[int]
    delayed: dict[int, int]
    expires: dict[int, int]
    leases: list[LeasesRestored]
    failures: dict[int, int]
    dead: list[DeadLetter]
    totals: Totals
    outstanding_bytes: int
    held_bytes: int
    revived_ns: dict[int, int]
    earlier: bytes = b""
    first_sequence: int = 1
    used_ns: int = 0


class SnapshotRestored(_Fact, frozen=True):
    """A snapshot's whole state; see `SnapshotCreated`."""

    name: str
    topic_number: int
    held: bytes
    next_sequence: int
    created_ns: int
    expires_ns: int
    labels: dict[str, str]
    resource: bytes


Fact = (
    TopicCreated
    | TopicUpdated
    | TopicDeleted
    | SubscriptionCreated
    | SubscriptionUpdated
    | SubscriptionUsed
    | SubscriptionDetached
    | SubscriptionSought
    | SubscriptionDeleted
    | SnapshotCreated
    | SnapshotUpdated
    | SnapshotDeleted
    | DocumentPut
    | DocumentDeleted
    | MessagesPublished
    | DedupIdsNoted
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
    | CheckpointBegun
    | TopicRestored
    | SubscriptionRestored
    | SnapshotRestored
)
