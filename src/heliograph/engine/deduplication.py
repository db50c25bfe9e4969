"""Which messages of a topic were published under an id of the publisher's own, so that a repeated publish is one
message (queue-protocol.md: `dedup_id`, ten minutes, answers the first id)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph.engine.message import Draft

DEDUP_NS = 600 * 1_000_000_000
"""How long an id is remembered, counted from the publish that it came with."""


class DedupIds:
    """The ids of one topic, oldest first.

    Args:
        noted: as `noted()` gave them.
    """

    __slots__ = ("_noted",)

    def __init__(self, noted: Mapping[str, tuple[int, int]] | None = None) -> None:
        self._noted: dict[str, tuple[int, int]] = dict(noted or {})

    def sequence_of(self, dedup_id: str, now_ns: int) -> int:
        """The message published under that id within the last ten minutes; 0 = none."""
        sequence, noted_ns = self._noted.get(dedup_id, (0, 0))
        return sequence if now_ns < noted_ns + DEDUP_NS else 0

    def note(self, dedup_ids: Sequence[str], sequences: Sequence[int], now_ns: int) -> None:
        """DedupIdsNoted. What is older than ten minutes then is forgotten."""
        noted = self._noted
        for dedup_id, sequence in zip(dedup_ids, sequences, strict=True):
            noted.pop(dedup_id, None)  # to the end
            noted[dedup_id] = (sequence, now_ns)
        while True:
            oldest = next(iter(noted))
            if now_ns < noted[oldest][1] + DEDUP_NS:
                return
            del noted[oldest]

    def noted(self) -> dict[str, tuple[int, int]]:
        """A copy: sequence and instant by id."""
        return dict(self._noted)


def place_once(
    known: DedupIds | None, drafts: Sequence[Draft], first: int, now_ns: int
) -> tuple[list[Draft], list[int], dict[str, int]]:
    """Which drafts are new, and where each of them is or will be.

    Args:
        known: the topic's ids; None = it has none.
        drafts: what is published; the same id twice among them is one message, too.
        first: the sequence of the first new one.
        now_ns: the time of the publish.

    Returns:
        The new drafts, the sequence of each draft, and the new ids with their sequences.
    """
    fresh: list[Draft] = []
    sequences: list[int] = []
    noted: dict[str, int] = {}
    for draft in drafts:
        dedup_id = draft.dedup_id
        sequence = noted.get(dedup_id, 0) if dedup_id else 0
        if dedup_id and not sequence and known is not None:
            sequence = known.sequence_of(dedup_id, now_ns)
        if not sequence:
            sequence = first + len(fresh)
            fresh.append(draft)
            if dedup_id:
                noted[dedup_id] = sequence
        sequences.append(sequence)
    return fresh, sequences, noted
