"""The checker's own record: what was asked for and answered, written before and after each call. It shares nothing with
the broker, and knows its promises."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any


class Faults:
    """What was wrong, in words. Thread-safe."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.found.append(text)


class Published:
    """Messages of one topic: the payloads that were sent, and the ids that were answered."""

    def __init__(self) -> None:
        self.attempted: set[bytes] = set()
        self.answered: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self.answered)


class Deliveries:
    """What one subscription delivered.

    Args:
        name: of the subscription, for texts.
        published: what may come.
        faults: where violations go.
    """

    def __init__(self, name: str, published: Published, faults: Faults) -> None:
        self.name = name
        self.count = 0
        self.payloads: dict[str, bytes] = {}  # by message id
        self.attempts: dict[str, int] = {}  # the latest
        self.acknowledged: set[str] = set()  # answered with success: gone for ever
        self.unsure: set[str] = set()  # an acknowledgement of theirs failed: carried out, perhaps, and the answer lost
        self._published = published
        self._faults = faults
        self._lock = threading.Lock()

    def note(self, message_id: str, payload: bytes, attempt: int = 0) -> None:
        """A message has come; `attempt` 0 = not told."""
        with self._lock:
            self.count += 1
            where = f"{self.name}: message {message_id} ({payload[:20]!r})"
            expect, published = self._faults.expect, self._published
            expect(payload in published.attempted, f"{where} was invented")
            expect(published.answered.get(message_id, payload) == payload, f"{where} is not what was published")
            expect(self.payloads.setdefault(message_id, payload) == payload, f"{where} had another payload before")
            expect(message_id not in self.acknowledged, f"{where} came after its acknowledgement was answered")
            before = self.attempts.get(message_id, 0)
            expect(attempt >= before, f"{where}: delivery attempt {attempt} after {before}")
            self.attempts[message_id] = attempt
            self.check(message_id, payload, where)

    def check(self, message_id: str, payload: bytes, where: str) -> None:
        """More that must be true of a delivery; under the lock."""

    def missing(self) -> list[str]:
        """Answered publishes that have not come."""
        return [message_id for message_id in list(self._published.answered) if message_id not in self.payloads]

    def has_all(self) -> bool:
        return not self.missing()

    def is_settled(self) -> bool:
        """Whether every answered publish is acknowledged, as far as anybody can know."""
        return set(self._published.answered) <= self.acknowledged | self.unsure


class OrderedDeliveries(Deliveries):
    """Of a subscription with message ordering. The payload begins with `KEY NUMBER `, the numbers of a key growing.

    A call that was carried out, its answer lost and repeated by the client stands in the log twice; so numbers may step
    back, but no number comes before all lower ones have. Message ids of a key never step back: what was delivered later
    waited for the acknowledgement of what was before.
    """

    def __init__(self, name: str, published: Published, faults: Faults) -> None:
        super().__init__(name, published, faults)
        self._last_id: dict[bytes, int] = defaultdict(int)
        self._highest: dict[bytes, int] = defaultdict(int)

    def check(self, message_id: str, payload: bytes, where: str) -> None:
        key, number, _ = payload.split(b" ", 2)
        expect = self._faults.expect
        expect(int(message_id) >= self._last_id[key], f"{where} came after {self._last_id[key]} of its key")
        expect(int(number) <= self._highest[key] + 1, f"{where} came when {self._highest[key] + 1} of its key was due")
        self._last_id[key] = int(message_id)
        self._highest[key] = max(self._highest[key], int(number))


class MortalDeliveries(Deliveries):
    """Of a subscription that gives up after `attempts_max` deliveries."""

    def __init__(self, name: str, published: Published, faults: Faults, attempts_max: int) -> None:
        super().__init__(name, published, faults)
        self._attempts_max = attempts_max

    def check(self, message_id: str, payload: bytes, where: str) -> None:
        attempt = self.attempts[message_id]
        self._faults.expect(1 <= attempt <= self._attempts_max, f"{where} came for the {attempt}th time")


class Jobs:
    """What became of the messages of a work queue, by payload.

    Args:
        max_retries: of the queue.
        faults: where violations go.
    """

    def __init__(self, max_retries: int, faults: Faults) -> None:
        self.attempted: set[int] = set()
        self.answered: dict[int, str] = {}  # number to message id
        self.settled: dict[int, str] = {}  # number to what was answered for good: "acknowledged", "rejected" or "dead"
        self.unsure: set[int] = set()  # an acknowledgement or rejection of theirs got no answer
        self.deliveries = 0
        self._retries: dict[int, int] = {}
        self._max_retries = max_retries
        self._faults = faults
        self._lock = threading.Lock()

    def delivered(self, number: int, message_id: str, retry_count: int) -> None:
        with self._lock:
            self.deliveries += 1
            where = f"queue: job {number} ({message_id})"
            expect = self._faults.expect
            expect(number in self.attempted, f"{where} was invented")
            expect(self.answered.get(number, message_id) == message_id, f"{where} is not what was published")
            expect(number not in self.settled, f"{where} came after it was {self.settled.get(number)}")
            before = self._retries.get(number, 0)
            expect(before <= retry_count <= self._max_retries, f"{where}: retry {retry_count} after {before}")
            self._retries[number] = retry_count

    def check_end(self, dead: list[dict[str, Any]], must_die: Callable[[int], bool]) -> None:
        """Nothing is left in the queue: every job that was answered is worked off, or a dead letter by the rules."""
        expect = self._faults.expect
        reasons = {letter["message"]["n"]: letter["reason"] for letter in dead}
        expect(len(reasons) == len(dead), "queue: a job died twice")
        expect(reasons.keys() <= self.attempted, "queue: a dead letter was invented")
        for number in self.answered:
            fate, reason = self.settled.get(number), reasons.get(number)
            where = f"queue: job {number} was {fate or 'not settled'}, and is "
            where += f"a dead letter because of {reason}" if reason else "no dead letter"
            if fate == "acknowledged":
                expect(reason is None and not must_die(number), where)
            elif fate == "rejected":
                expect(reason == "ExplicitNack", where)
            elif fate == "dead":
                expect(reason == "MaxRetriesExceeded", where)
            elif number not in self.unsure:
                # the last lease ended without a word of the consumer, who never heard of it
                expect(reason == "MaxRetriesExceeded", where)
