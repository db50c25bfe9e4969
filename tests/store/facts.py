"""Facts for tests of stores."""

from __future__ import annotations

import threading
from collections.abc import Callable

from heliograph.engine.facts import Fact, MessagesAcknowledged, MessagesPublished
from heliograph.engine.message import Message
from heliograph.store.protocol import Commit, Store


def message(sequence: int) -> Message:
    return Message(sequence=sequence, publish_time_ns=10**18 + sequence, data=b"message %d" % sequence)


def messages(first: int, last: int) -> list[Message]:
    return [message(sequence) for sequence in range(first, last + 1)]


def published(first: int, last: int, *, topic_number: int = 1) -> MessagesPublished:
    """The fact as the engine makes it."""
    return MessagesPublished(f"t{topic_number}", topic_number, messages(first, last))


def recovered(first: int, last: int, *, topic_number: int = 1) -> MessagesPublished:
    """The fact as a store gives it back."""
    return MessagesPublished(f"t{topic_number}", topic_number, messages(first, last), first, last)


def acknowledged(*sequences: int) -> Fact:
    return MessagesAcknowledged("s", list(sequences))


def committed(commit: Commit) -> bool:
    """Wait for a commit; whether it succeeded."""
    assert commit.wait(30)
    return commit.error is None


def put(store: Store, *facts: Fact) -> None:
    """Append facts and see them committed."""
    assert committed(store.append(list(facts)))


def sequences(store: Store, first: int, last: int, *, topic_number: int = 1, held: bool = False) -> list[int]:
    """What `read_log` gives."""
    return [message.sequence for batch in store.read_log(topic_number, first, last, held=held) for message in batch]


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the writer thread does by itself; it takes microseconds."""
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it never happened")
