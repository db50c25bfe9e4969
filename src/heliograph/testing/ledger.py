"""What was published since a server started, and what became of it: read off the facts, whatever door they came
through."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from heliograph.engine.facts import (
    Fact,
    MessagesAcknowledged,
    MessagesDeadLettered,
    MessagesLeased,
    MessagesPublished,
    MessagesReturned,
    ReturnCause,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionRestored,
    TopicCreated,
    TopicRestored,
)
from heliograph.engine.message import message_id
from heliograph.store.protocol import Commit, Store

MESSAGES_MAX = 100_000
"""Messages that a ledger remembers; of more, it forgets the oldest."""


class Counts(msgspec.Struct):
    """What became of one message in one subscription.

    Args:
        deliveries: times that it was handed out.
        acknowledgements: 0 or 1; more only after a seek brought it back.
        nacks, expirations: how leases on it ended otherwise.
        dead_letters: times that it was given up.
    """

    deliveries: int = 0
    acknowledgements: int = 0
    nacks: int = 0
    expirations: int = 0
    dead_letters: int = 0


class PublishedMessage(msgspec.Struct):
    """A message that was published since the server started.

    Args:
        topic: its full name, such as `projects/p/topics/t`; of a work queue `queues/NAME`.
        message_id: as the publisher was told.
        publish_time_ns: nanoseconds since the epoch.
        subscriptions: by full name, those that it was handed out in or that gave it up.
    """

    topic: str
    message_id: str
    publish_time_ns: int
    data: bytes
    attributes: dict[str, str]
    ordering_key: str
    subscriptions: dict[str, Counts] = {}

    @property
    def deliveries(self) -> int:
        """In all subscriptions together."""
        return sum(counts.deliveries for counts in self.subscriptions.values())

    @property
    def acknowledgements(self) -> int:
        """In all subscriptions together."""
        return sum(counts.acknowledgements for counts in self.subscriptions.values())


class Ledger:
    """Collects facts. Thread-safe.

    Args:
        messages_max: see `MESSAGES_MAX`.
    """

    def __init__(self, messages_max: int = MESSAGES_MAX) -> None:
        self._messages_max = messages_max
        self._lock = threading.Lock()
        self._topics: dict[str, int] = {}  # the latest number of a name
        self._subscriptions: dict[str, int] = {}  # number of the topic
        self._messages: dict[tuple[int, int], PublishedMessage] = {}  # by topic number and sequence

    def messages(self, topic: str | None = None) -> list[PublishedMessage]:
        """Copies, in the order of publication: of one topic by its full name, or of all."""
        with self._lock:
            chosen = [message for message in self._messages.values() if topic is None or message.topic == topic]
            return [_copy(message) for message in chosen]

    def clear(self) -> None:
        """Forget the messages."""
        with self._lock:
            self._messages.clear()

    def observe(self, facts: Iterable[Fact]) -> None:
        """What has just happened."""
        with self._lock:
            for fact in facts:
                self._observe(fact)

    def observe_recovered(self, fact: Fact) -> None:
        """What happened before the server started: only which topics and subscriptions there are."""
        if isinstance(fact, TopicCreated | TopicRestored | SubscriptionCreated | SubscriptionRestored):
            self.observe([fact])

    def _observe(self, fact: Fact) -> None:
        match fact:
            case MessagesPublished():
                self._published(fact)
            case MessagesLeased():
                for counts in self._counts(fact.subscription, fact.sequences):
                    counts.deliveries += 1
            case MessagesAcknowledged():
                for counts in self._counts(fact.subscription, fact.sequences):
                    counts.acknowledgements += 1
            case MessagesReturned():
                for counts in self._counts(fact.subscription, fact.sequences):
                    _count_return(counts, fact.cause)
            case MessagesDeadLettered():
                for counts in self._counts(fact.subscription, fact.sequences):
                    _count_return(counts, fact.cause)
                    counts.dead_letters += 1
            case TopicCreated() | TopicRestored():
                self._topics[fact.name] = fact.number
            case SubscriptionCreated():
                self._subscriptions[fact.name] = self._topics.get(fact.topic, 0)
            case SubscriptionRestored():
                self._subscriptions[fact.name] = fact.topic_number
            case SubscriptionDeleted():
                self._subscriptions.pop(fact.name, None)

    def _published(self, fact: MessagesPublished) -> None:
        for message in fact.messages:
            self._messages[fact.topic_number, message.sequence] = PublishedMessage(
                topic=fact.topic,
                message_id=message_id(fact.topic_number, message.sequence),
                publish_time_ns=message.publish_time_ns,
                data=message.data,
                attributes=dict(message.attributes),
                ordering_key=message.ordering_key,
            )
        while len(self._messages) > self._messages_max:
            del self._messages[next(iter(self._messages))]

    def _counts(self, subscription: str, sequences: Sequence[int]) -> Iterator[Counts]:
        topic_number = self._subscriptions.get(subscription, 0)
        for sequence in sequences:
            message = self._messages.get((topic_number, sequence))
            if message is not None:
                yield message.subscriptions.setdefault(subscription, Counts())


def _count_return(counts: Counts, cause: ReturnCause | None) -> None:
    if cause is ReturnCause.NACKED:
        counts.nacks += 1
    elif cause is ReturnCause.EXPIRED:
        counts.expirations += 1


def _copy(message: PublishedMessage) -> PublishedMessage:
    copies: Mapping[str, Counts] = {
        name: msgspec.structs.replace(counts) for name, counts in message.subscriptions.items()
    }
    return msgspec.structs.replace(message, attributes=dict(message.attributes), subscriptions=dict(copies))


class _RecordingStore:
    """Shows a ledger what passes on its way to a store."""

    def __init__(self, inner: Store, ledger: Ledger) -> None:
        self._inner = inner
        self._ledger = ledger

    def append(self, facts: Sequence[Fact]) -> Commit:
        self._ledger.observe(facts)
        return self._inner.append(facts)

    def recover(self) -> Iterator[Fact]:
        for fact in self._inner.recover():
            self._ledger.observe_recovered(fact)
            yield fact

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)


def recording(store: Store, ledger: Ledger) -> Store:
    """`store`, with whatever is appended to it shown to `ledger`."""
    return cast(Store, _RecordingStore(store, ledger))
