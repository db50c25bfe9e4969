"""What a door may ask of a broker. The doors know nothing else of it, so that one could be remote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from heliograph.broker.clock import Timer
from heliograph.broker.reply import Reply
from heliograph.broker.staged_part import StagedPart
from heliograph.engine.claims import Claim
from heliograph.engine.dead_letter import DeadLetter
from heliograph.engine.facts import Fact
from heliograph.engine.failure import Settled
from heliograph.engine.message import Delivery, Draft, Message
from heliograph.engine.settings import SubscriptionSettings, TopicSettings
from heliograph.engine.statistics import Statistics


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic as the broker knows it. `number` is never reused; `next_sequence` is what the next message will get;
    `in_time_order`: publish times have grown with the sequences so far."""

    name: str
    number: int
    settings: TopicSettings
    created_ns: int
    next_sequence: int
    in_time_order: bool = False


class SubscriptionInfo(msgspec.Struct, frozen=True):
    """A subscription as the broker knows it. `topic` keeps its name when the topic is deleted (`topic_deleted`); what
    waits is still delivered then. A `detached` one has nothing, and refuses pulls: by `detach_subscription`, or because
    its topic was deleted together with the backlog."""

    name: str
    number: int
    topic: str
    settings: SubscriptionSettings
    created_ns: int
    detached: bool
    topic_deleted: bool = False
    topic_number: int = 0


class Unacknowledged(msgspec.Struct, frozen=True):
    """What a subscription had not acknowledged at one instant.

    Args:
        at_ns: when, nanoseconds since the epoch.
        topic_number: of the messages.
        runs: their sequences: the first, and one behind the last; in order. Dead letters are not among them.
    """

    at_ns: int
    topic_number: int
    runs: list[tuple[int, int]]


class SnapshotInfo(msgspec.Struct, frozen=True):
    """A snapshot as the broker knows it: what a subscription of `topic` had not acknowledged, until `expires_ns`.
    `topic` keeps its name when the topic is deleted (`topic_deleted`); `labels` and `resource` are the caller's."""

    name: str
    topic: str
    created_ns: int
    expires_ns: int
    labels: dict[str, str]
    resource: bytes
    topic_deleted: bool = False


class Health(msgspec.Struct, frozen=True):
    """Whether a broker can do its work, and what its answers are worth.

    Args:
        store: what it keeps things in, such as "sqlite" or "memory".
        durability: what an answer survives; see `store.protocol.Durability`.
        reason: why it cannot work at present, in one line; "" = it can.
    """

    store: str
    durability: str
    reason: str


class Watch(Protocol):
    """A wish to be told when a subscription may have messages."""

    def close(self) -> None:
        """No call comes after this. Idempotent."""


class Broker(Protocol):
    """One broker. Thread-safe; no operation blocks: what must be durable first answers through a `Reply`.

    Names are opaque here: the Pub/Sub door uses full resource names (`projects/p/topics/t`), queues `queues/NAME`.
    All errors are `heliograph.errors`; an operation that raises has changed nothing.
    """

    def create_topic(self, name: str, settings: TopicSettings = ...) -> Reply[TopicInfo]:
        """Raises: AlreadyExists."""

    def get_topic(self, name: str) -> TopicInfo:
        """Raises: TopicNotFound."""

    def list_topics(self) -> list[TopicInfo]:
        """All topics, by name."""

    def update_topic(self, name: str, settings: TopicSettings) -> Reply[TopicInfo]:
        """All its settings are these from now on; who merges masks is the door. Raises: TopicNotFound,
        InvalidArgument."""

    def delete_topic(self, name: str, *, clears_backlog: bool = False) -> Reply[None]:
        """Its subscriptions stay, and go on delivering what they have; with `clears_backlog` they are detached, and
        their messages go (design §5). Raises: TopicNotFound."""

    def create_subscription(
        self, name: str, topic: str, settings: SubscriptionSettings = ...
    ) -> Reply[SubscriptionInfo]:
        """It receives what is published from now on. Raises: AlreadyExists, TopicNotFound."""

    def get_subscription(self, name: str) -> SubscriptionInfo:
        """Raises: SubscriptionNotFound."""

    def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionInfo]:
        """All subscriptions, or those attached to `topic`, by name. Raises: TopicNotFound."""

    def update_subscription(self, name: str, settings: SubscriptionSettings) -> Reply[SubscriptionInfo]:
        """All its settings are these for what happens from now on: new leases, the next failures, the next look at
        retention. Raises: SubscriptionNotFound, InvalidArgument (also where `enable_message_ordering`, `filter` or
        `prioritised` would change; then nothing does: pubsub-protocol.md 1.5.11, 1.5.12)."""

    def detach_subscription(self, name: str) -> Reply[None]:
        """It leaves its topic, its messages go, and it refuses pulls from now on (pubsub-protocol.md 1.5.15).
        Raises: SubscriptionNotFound."""

    def delete_subscription(self, name: str) -> Reply[None]:
        """Its messages and leases go. Raises: SubscriptionNotFound."""

    def create_queue(self, name: str, settings: SubscriptionSettings) -> Reply[SubscriptionInfo]:
        """A topic and a subscription of the one name, created together; again with equal settings: no change.
        Raises: QueueExists, InvalidPriority, InvalidArgument."""

    def delete_queue(self, name: str) -> Reply[None]:
        """Raises: QueueNotFound."""

    def publish(self, topic: str, drafts: Sequence[Draft]) -> Reply[list[str]]:
        """All or nothing. Answers the message ids, in order. Raises: TopicNotFound, InvalidArgument, MessageTooLarge,
        QueueFull."""

    def pull(
        self,
        subscription: str,
        max_messages: int,
        *,
        max_bytes: int = 0,
        ack_deadline_ns: int = 0,
        consumer: str = "",
        oversized_first: bool = True,
    ) -> Reply[list[Delivery]]:
        """Lease up to `max_messages`, at once, perhaps none. The first may be larger than `max_bytes` (0 = no bound),
        unless `oversized_first` is False; `ack_deadline_ns` 0 = the subscription's. A `consumer` is bound by the
        subscription's prefetch.
        Raises: SubscriptionNotFound, SubscriptionDetached, InvalidArgument."""

    def watch(self, subscription: str, callback: Callable[[], None]) -> Watch:
        """Call `callback()` whenever the subscription may have messages to pull, or is deleted or detached; also once
        now if it has some. It may come from any thread, must not block and must not call the broker: set an event and
        pull elsewhere. Raises: SubscriptionNotFound."""

    def acknowledge(self, subscription: str, ack_ids: Sequence[str]) -> Reply[list[str]]:
        """Answers the ids that were not current any more (ignored). With exactly-once, or `ack_ids` of a queue, the
        reply waits for the commit. Raises: SubscriptionNotFound, InvalidAckId (malformed: nothing is acknowledged)."""

    def acknowledge_later(self, subscription: str, ack_id: str) -> None:
        """As `acknowledge`, cheaper and without an answer: for one of many. It takes effect before anything that
        happens afterwards, the end of the lease included, but may be carried out only with the next operation: the
        caller sees to it that one follows soon (`acknowledge(subscription, [])` will do). What is stale or gone by then
        is ignored. It takes no lock."""

    def modify_ack_deadline(self, subscription: str, ack_ids: Sequence[str], ack_deadline_ns: int) -> Reply[list[str]]:
        """The lease now ends at now + `ack_deadline_ns`; 0 = nack. Answers and raises as `acknowledge`."""

    def nack(self, subscription: str, ack_ids: Sequence[str]) -> Reply[Settled]:
        """As `modify_ack_deadline` to 0; answers also which messages were given up. Raises as `acknowledge`."""

    def release(self, subscription: str, ack_ids: Sequence[str]) -> Reply[list[str]]:
        """Give back without counting a failure: the consumer went away."""

    def reject(self, subscription: str, ack_ids: Sequence[str]) -> Reply[list[str]]:
        """Dead-letter at once (queue.nack with requeue=false). Answers and raises as `acknowledge`."""

    def subscription_of(self, ack_id: str) -> str:
        """The subscription that an ack id belongs to. Raises: InvalidAckId (malformed, or the subscription is gone)."""

    def current_ack_id(self, subscription: str, message_id: str) -> str:
        """The ack id of the current lease on a message. Raises: MessageNotFound (nobody holds it)."""

    def outstanding(self, subscription: str, consumer: str) -> int:
        """How many messages a named consumer holds, for its prefetch limit. Raises: SubscriptionNotFound."""

    def position(self, subscription: str, priority: int) -> int:
        """Ready messages of equal or higher priority. Raises: SubscriptionNotFound."""

    def statistics(self, subscription: str) -> Statistics:
        """Raises: SubscriptionNotFound."""

    def unacknowledged(self, subscription: str) -> Reply[Unacknowledged]:
        """What waits or is leased now, dead letters apart. Once it is answered everything that led to it is durable, so
        that the event log tells it. Raises: SubscriptionNotFound."""

    def dead_letters(
        self, subscription: str, *, offset: int = 0, limit: int | None = None
    ) -> list[tuple[DeadLetter, Message]]:
        """Those that the subscription keeps itself, oldest first: after the first `offset`, up to `limit`; None = all.
        How many it keeps tell the statistics. Raises: SubscriptionNotFound."""

    def retry_dead_letters(self, subscription: str, message_ids: Sequence[str] | None = None) -> Reply[int]:
        """Back to the waiting, all or those named, with a fresh retry count and, if it died of its TTL, a fresh one.
        Answers how many. Raises: SubscriptionNotFound, MessageNotFound (nothing is retried)."""

    def purge_dead_letters(self, subscription: str) -> Reply[int]:
        """Answers how many. Raises: SubscriptionNotFound."""

    def purge(self, subscription: str) -> Reply[tuple[int, int]]:
        """Ready and delayed messages go, never leased ones. Answers (ready, delayed). Raises: SubscriptionNotFound."""

    def peek(self, subscription: str, count: int) -> list[Message]:
        """What would be delivered next, without a lease. Raises: SubscriptionNotFound."""

    def seek_to_time(self, subscription: str, instant_ns: int) -> Reply[None]:
        """What was published before `instant_ns` is acknowledged, and what was published from then on is not, as far
        as it is still kept: acknowledged messages where the topic has a retention, or the subscription retains them.
        Its leases are void, and the old ack ids stale (pubsub-protocol.md 1.11.2, 1.11.6).
        Raises: SubscriptionNotFound, SubscriptionDetached, InvalidArgument, Unavailable (the store cannot be read)."""

    def seek_to_snapshot(self, subscription: str, snapshot: str) -> Reply[None]:
        """Exactly what the snapshot has is not acknowledged, and everything published since it was made (1.11.3).
        Raises: SubscriptionNotFound, SubscriptionDetached, SnapshotNotFound, FailedPrecondition (it is of another
        topic), Unavailable."""

    def create_snapshot(
        self, name: str, subscription: str, *, expires_ns: int = 0, labels: dict[str, str] = ..., resource: bytes = b""
    ) -> Reply[SnapshotInfo]:
        """What the subscription has not acknowledged, to seek back to. It expires by itself at `expires_ns`; 0 = seven
        days after its oldest message was published (1.11.4).
        Raises: AlreadyExists, SubscriptionNotFound, SubscriptionDetached, InvalidArgument, FailedPrecondition (it would
        expire within the hour)."""

    def get_snapshot(self, name: str) -> SnapshotInfo:
        """Raises: SnapshotNotFound."""

    def list_snapshots(self, topic: str | None = None) -> list[SnapshotInfo]:
        """All snapshots, or those of `topic`, by name. Raises: TopicNotFound."""

    def update_snapshot(
        self, name: str, *, expires_ns: int, labels: dict[str, str], resource: bytes
    ) -> Reply[SnapshotInfo]:
        """In place of what it had. Raises: SnapshotNotFound, InvalidArgument (it would have expired already)."""

    def delete_snapshot(self, name: str) -> Reply[None]:
        """Raises: SnapshotNotFound."""

    def put_document(self, collection: str, name: str, value: bytes) -> Reply[None]:
        """Keep something durably for a door, opaque here, in place of an earlier one of the name; such as "iam"
        policies. Raises: InvalidArgument (a name that is no text)."""

    def get_document(self, collection: str, name: str) -> bytes | None:
        """What was put there; None = nothing."""

    def list_documents(self, collection: str) -> list[tuple[str, bytes]]:
        """The names and values of a collection, by name."""

    def delete_document(self, collection: str, name: str) -> Reply[None]:
        """It is gone; one that was not there is no error."""

    def last_number(self) -> int:
        """The number of the latest topic or subscription: it grows with each that is made."""

    def claim(
        self,
        subscription: str,
        consumer: str,
        max_messages: int,
        *,
        messages_per_claim: int,
        ttl_ns: int,
        max_bytes: int = 0,
    ) -> Reply[list[Claim]]:
        """Lease up to `max_messages` of about `max_bytes` (0 = no bound; one claim may begin with a larger message) to
        a named consumer, at once, perhaps none, in claims of `messages_per_claim`. It
        finds them again by number, also after a restart, until it acknowledges them; after `ttl_ns` without an
        extension they end as any lease does. The reply is always durable.
        Raises: SubscriptionNotFound, SubscriptionDetached, InvalidArgument."""

    def claims(self, subscription: str, consumer: str) -> list[Claim]:
        """What the consumer has claimed and not acknowledged, by number. Raises: SubscriptionNotFound."""

    def read_claim(self, subscription: str, consumer: str, number: int) -> Iterator[list[tuple[Message, int]]]:
        """The messages of a claim with their attempts, in the order of delivery, in batches; as often as it is asked
        for. Safe from any thread. Raises: SubscriptionNotFound, ClaimNotFound (acknowledged, or ended; also midway)."""

    def acknowledge_claims(self, subscription: str, consumer: str, up_to: int) -> Reply[int]:
        """The messages of the consumer's claims up to number `up_to` are done. Answers how many that were, durably.
        Idempotent. Raises: SubscriptionNotFound."""

    def extend_claims(self, subscription: str, consumer: str, ttl_ns: int) -> Reply[int]:
        """All claims of the consumer now end at now + `ttl_ns`. Answers how many messages they have.
        Raises: SubscriptionNotFound, InvalidArgument."""

    def release_claims(self, subscription: str, consumer: str) -> Reply[int]:
        """All messages that the consumer has claimed wait again, and no failure is counted. Answers how many.
        Raises: SubscriptionNotFound."""

    def stage(self, stage: str, drafts: Sequence[Draft]) -> Reply[tuple[int, int]]:
        """Keep messages, one at least, that are published later or never. Answers their first and last sequence within
        the stage, which is made if it is missing. Raises: as `publish`."""

    def publish_staged(
        self, writer: str, batch: int, stage: str, parts: Sequence[StagedPart], max_messages: int
    ) -> tuple[int, int]:
        """Publish up to `max_messages` of what a writer has staged for a batch; to be called until nothing is left.
        Exactly once, however often it is called, whatever was killed meanwhile: a batch that is published already, or
        an earlier one, answers (0, 0); one that was begun goes on with the parts that it was begun with. In the end the
        stage is dropped. Blocks on the store.

        Args:
            writer: who; each has batches with growing numbers.
            batch: the number.
            stage: where its messages are.
            parts: of the stage, in the order in which they are published.
            max_messages: of this call.

        Returns:
            How many were published now, and how many are left.

        Raises:
            TopicNotFound, InvalidArgument, QueueFull, Unavailable.
            FailedPrecondition: the stage is gone.
        """

    def drop_stage(self, stage: str) -> Reply[None]:
        """What is staged there is never published. Idempotent."""

    def log_bounds(self, topic: str) -> tuple[int, int]:
        """(first, last) durable sequence of the topic's log that can be read; `last` is `first` - 1 when none can.
        Raises: TopicNotFound."""

    def read_log(self, topic: str, first: int, last: int) -> Iterator[list[Message]]:
        """Messages with sequences in [first, last], in order, in batches. Safe from any thread, blocks on the store.
        Raises: TopicNotFound."""

    def log_offset(self, topic: str, published_ns: int) -> int:
        """The sequence of the first durable message published at that instant or later, one behind the last if there is
        none; see `Store.log_offset`. Blocks on the store. Raises: TopicNotFound."""

    def snapshot_offset(self, topic: str, snapshot: str) -> int:
        """The lowest sequence that a snapshot of the topic had not acknowledged. Raises: TopicNotFound,
        SnapshotNotFound, FailedPrecondition (it is of another topic)."""

    def log_extent(self, topic: str, first: int, bytes_max: int) -> int:
        """The last sequence of a range of the log that begins at `first` and has about `bytes_max` of messages; at
        least `first`. Blocks on the store. Raises: TopicNotFound."""

    def event_bounds(self) -> tuple[int, int]:
        """(first, last) position of the event log that can be read; `last` is `first` - 1 when none can.
        Raises: FailedPrecondition (no event log is kept)."""

    def read_events(self, first: int, last: int) -> Iterator[tuple[int, list[Fact]]]:
        """What happened at positions in [first, last], in order; `heliograph.wire.arrow_events` makes rows of it. Safe
        from any thread, blocks on the store. Raises: FailedPrecondition."""

    def event_offset(self, at_ns: int) -> int:
        """The first position at which something happened at that instant or later, one behind the last if nothing did.
        Blocks on the store. Raises: FailedPrecondition."""

    def health(self) -> Health:
        """Whether it can do its work. It never raises."""

    def now_ns(self) -> int:
        """The broker's time, nanoseconds since the epoch: what delays, expiries and deadlines are counted from."""

    def timer(self, callback: Callable[[], None]) -> Timer:
        """A timer on that time, for what a door does when nobody calls: `callback()` may come from any thread, must not
        block and must not call the broker. It has a thread once it is set, so a door needs one, not many."""

    def close(self) -> None:
        """Everything answered is durable and the store is released. Idempotent."""
