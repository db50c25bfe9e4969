"""Backlog and oldest message at the end of each window, against a count by hand and a naive one."""

from __future__ import annotations

import random

from heliograph.spark.pipeline.gauges import Gauge, Span, gauges


def test_messages_are_open_from_their_window_until_that_in_which_they_are_settled() -> None:
    spans = [Span(4, 7, 3, 40), Span(5, 5, 9, 50), Span(6, None, 2, 60)]
    assert list(gauges(spans, 5, 8)) == [
        Gauge(5, 3, 40),
        Gauge(6, 5, 40),
        Gauge(7, 2, 60),
        Gauge(8, 2, 60),
    ]


def test_nothing_open_has_no_oldest_message() -> None:
    assert list(gauges([], 1, 2)) == [Gauge(1, 0, None), Gauge(2, 0, None)]


def test_gauges_equal_those_of_a_naive_count() -> None:
    chance = random.Random(7)
    for _ in range(50):
        spans = []
        for _ in range(chance.randrange(30)):
            published = chance.randrange(12)
            settled = None if chance.random() < 0.2 else published + chance.randrange(6)
            spans.append(Span(published, settled, chance.randrange(1, 5), published * 100 + chance.randrange(100)))
        expected = []
        for window in range(2, 14):
            still = [s for s in spans if s.published <= window and (s.settled is None or s.settled > window)]
            oldest = min((s.oldest_ns for s in still), default=None)
            expected.append(Gauge(window, sum(s.messages for s in still), oldest))
        assert list(gauges(spans, 2, 13)) == expected
