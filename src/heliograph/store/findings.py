"""What a check of a store finds, and what it affects."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

FINDINGS_MAX = 100
"""Of each kind; beyond them they are only counted: a file full of zeros shall not make a report of a million lines."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it must be.

    Args:
        where: "file", "journal", "messages", "index", "trims", "history", "pages", "log" or "state".
        problem: what is wrong, in one line.
        affects: what that means for whom, in one line.
        topic: whose messages; "" = not of one topic.
        first_sequence, last_sequence: which of them; 0 = not known, or none.
        subscriptions: that hold some of them.
    """

    where: str
    problem: str
    affects: str
    topic: str = ""
    first_sequence: int = 0
    last_sequence: int = 0
    subscriptions: list[str] = []


class CheckReport(msgspec.Struct, frozen=True):
    """What a check has looked at, and found.

    Args:
        path: the file.
        in_use: a broker served it meanwhile; it was read as of one moment.
        format_version: of the file; 0 = it could not be read.
        journal_rows, message_rows, messages, topics, subscriptions: how many were read and looked at.
        findings: what is wrong; nothing = all is well.
        findings_left_out: how many more there are.
        not_checked: what could not be looked at, and why.
    """

    path: str
    in_use: bool
    format_version: int
    journal_rows: int
    message_rows: int
    messages: int
    topics: int
    subscriptions: int
    findings: list[Finding]
    findings_left_out: int
    not_checked: list[str]

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong."""
        return not self.findings


class Findings:
    """Collects findings, as many as anybody would read."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.left_out = 0
        self._counts: dict[str, int] = {}

    def add(self, finding: Finding) -> None:
        """One more."""
        count = self._counts[finding.where] = self._counts.get(finding.where, 0) + 1
        if count <= FINDINGS_MAX:
            self.kept.append(finding)
        else:
            self.left_out += 1

    def any(self, *where: str) -> bool:
        """Whether there is a finding of one of these kinds."""
        return any(place in self._counts for place in where)


class Spans:
    """Whole numbers as (first, last), both inside, in order and apart from each other. They nearly always come in
    growing order, so adding is O(1); what comes in between is sorted in when somebody looks."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._spans: list[tuple[int, int]] = []
        self._sorted = True
        self.last = 0  # the highest; 0 if there is nothing
        for first, last in spans:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """These, too."""
        self.last = max(self.last, last)
        if self._spans and self._spans[-1][1] + 1 == first:
            self._spans[-1] = (self._spans[-1][0], last)
            return
        if self._spans and first <= self._spans[-1][1]:
            self._sorted = False
        self._spans.append((first, last))

    def doubled(self) -> list[tuple[int, int]]:
        """What was added more than once."""
        doubled: list[tuple[int, int]] = []
        reached = 0
        for first, last in sorted(self._spans):
            if first <= reached:
                doubled.append((first, min(last, reached)))
            reached = max(reached, last)
        return doubled

    def __iter__(self) -> Iterator[tuple[int, int]]:
        if not self._sorted:
            self._sort()
        return iter(self._spans)

    def _sort(self) -> None:
        spans = sorted(self._spans)
        merged = spans[:1]
        for first, last in spans[1:]:
            if first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        self._spans, self._sorted = merged, True

    def missing(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """What of [first, last] is not here."""
        if not self._sorted:
            self._sort()
        begin = max(bisect_left(self._spans, (first, first)) - 1, 0)
        for span_first, span_last in islice(self._spans, begin, None):
            if span_first > last:
                break
            if span_last < first:
                continue
            if span_first > first:
                yield first, span_first - 1
            first = max(first, span_last + 1)
        if first <= last:
            yield first, last

    def meets(self, first: int, last: int) -> bool:
        """Whether anything of [first, last] is here."""
        return any(span_first <= last and first <= span_last for span_first, span_last in self)
