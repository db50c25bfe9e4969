"""Outstanding deliveries of one subscription, with one expiry heap.

Messages that were handed out together share one `Lease`, and so do those whose deadline was moved together; the heap
has an entry per such group, never per message. An entry whose messages have a newer lease by now is simply passed over,
and goes when its time comes, or when such entries are the majority.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import msgspec

from heliograph.errors import InvalidAckId


class Lease(msgspec.Struct, frozen=True, gc=False):
    """What the messages of one hand-out share.

    Args:
        number: of the hand-out; with the sequence it makes the ack id, so an ack id names one delivery.
        deadline_ns: when it ends.
        consumer: who holds it; "" = unnamed.
        leased_ns: when it was handed out; 0 = not known.
    """

    number: int
    deadline_ns: int
    consumer: str
    leased_ns: int = 0


class Leases:
    """Leases by sequence."""

    __slots__ = ("_heap", "_tie", "by_consumer", "by_sequence")

    def __init__(self) -> None:
        self.by_sequence: dict[int, Lease] = {}
        self.by_consumer: dict[str, int] | None = None  # how many messages each named consumer holds
        self._heap: list[tuple[int, int, Lease, Sequence[int]]] = []
        self._tie = 0  # equal deadlines must not compare leases

    def __len__(self) -> int:
        return len(self.by_sequence)

    def grant(self, sequences: Sequence[int], lease: Lease) -> None:
        """Hand out `sequences`, none of which is leased."""
        self.by_sequence.update(dict.fromkeys(sequences, lease))
        self._push(sequences, lease)
        if lease.consumer:
            if self.by_consumer is None:
                self.by_consumer = {}
            self.by_consumer[lease.consumer] = self.by_consumer.get(lease.consumer, 0) + len(sequences)

    def extend(self, sequences: Sequence[int], deadline_ns: int) -> None:
        """Move the deadline of messages of one hand-out."""
        old = self.by_sequence[sequences[0]]
        lease = Lease(old.number, deadline_ns, old.consumer, old.leased_ns)
        self.by_sequence.update(dict.fromkeys(sequences, lease))
        self._push(sequences, lease)

    def _push(self, sequences: Sequence[int], lease: Lease) -> None:
        self._tie += 1
        heappush(self._heap, (lease.deadline_ns, self._tie, lease, sequences))
        if len(self._heap) > 2 * len(self.by_sequence) + 64:
            current = self.by_sequence
            self._heap = [entry for entry in self._heap if any(current.get(number) is entry[2] for number in entry[3])]
            heapify(self._heap)

    def end(self, sequences: Sequence[int]) -> None:
        """They are not outstanding any more."""
        by_sequence, by_consumer = self.by_sequence, self.by_consumer
        if by_consumer is None:
            for sequence in sequences:
                del by_sequence[sequence]
        else:
            for sequence in sequences:
                consumer = by_sequence.pop(sequence).consumer
                if consumer:
                    left = by_consumer[consumer] - 1
                    if left:
                        by_consumer[consumer] = left
                    else:
                        del by_consumer[consumer]
        if not by_sequence:
            self._heap.clear()

    def of_consumer(self, consumer: str) -> dict[int, list[int]]:
        """What a named consumer holds: sequences, in the order in which they were handed out, by hand-out. Costs as
        much as it holds, and a little for each hand-out of others."""
        groups: dict[int, list[int]] = {}
        if consumer in (self.by_consumer or ()):
            for _, _, lease, sequences in self._heap:
                if lease.consumer == consumer:
                    held = [sequence for sequence in sequences if self.by_sequence.get(sequence) is lease]
                    if held:
                        groups.setdefault(lease.number, []).extend(held)
        return dict(sorted(groups.items()))

    def due(self, now_ns: int) -> list[int]:
        """Sequences whose lease has ended, in order. They are still leased until `end`."""
        sequences: list[int] = []
        heap, by_sequence = self._heap, self.by_sequence
        while heap and heap[0][0] <= now_ns:
            _, _, lease, group = heappop(heap)
            sequences += [sequence for sequence in group if by_sequence.get(sequence) is lease]
        return sorted(sequences)

    def requeue(self, sequences: Sequence[int]) -> None:
        """What `due` gave could not be dealt with: it gives them again."""
        groups: dict[int, tuple[Lease, list[int]]] = {}
        for sequence in sequences:
            lease = self.by_sequence[sequence]
            groups.setdefault(id(lease), (lease, []))[1].append(sequence)
        for lease, group in groups.values():
            self._push(group, lease)

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline, or one that was moved since: then `due` finds nothing, once."""
        return self._heap[0][0] if self._heap else None


def make_ack_ids(subscription_number: int, sequences: Sequence[int], lease_number: int) -> list[str]:
    """The ack ids of one hand-out: each names one delivery (spec 000, BR-018)."""
    return [f"{subscription_number}-{sequence}-{lease_number}" for sequence in sequences]


def parse_ack_ids(ack_ids: Sequence[str]) -> list[tuple[int, int, int]]:
    """(subscription number, sequence, lease number) of each.

    Raises:
        InvalidAckId: naming those that no broker ever made.
    """
    try:
        return [
            (int(subscription), int(sequence), int(number))
            for subscription, sequence, number in [ack_id.split("-") for ack_id in ack_ids]
        ]
    except ValueError:
        raise InvalidAckId([ack_id for ack_id in ack_ids if not _is_ack_id(ack_id)]) from None


def _is_ack_id(ack_id: str) -> bool:
    try:
        return len([int(part) for part in ack_id.split("-")]) == 3
    except ValueError:
        return False
