"""The topic's log alone, against a dictionary; and that few old messages do not keep it long."""

from __future__ import annotations

import random

import pytest

from heliograph.engine import log as log_module
from heliograph.engine.log import TopicLog
from heliograph.engine.message import Message


def _append(log: TopicLog, count: int, holders: int = 1) -> list[int]:
    sequences = list(range(log.next_sequence, log.next_sequence + count))
    log.append([Message(sequence, 1, b"") for sequence in sequences], holders)
    return sequences


@pytest.mark.parametrize("seed", range(20))
def test_whatever_was_released_in_whatever_order_the_held_ones_are_found(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_CUT_AT_LEAST", 4)
    chance, log, holders = random.Random(seed), TopicLog(), {}
    for _ in range(300):
        if chance.random() < 0.5:
            count = chance.choice([0, 1, 1, 2]) if seed % 2 else 1
            holders |= {sequence: count for sequence in _append(log, chance.randrange(1, 6), count) if count}
        elif holders:
            # the youngest are released first, mostly, so that old ones stay
            order = sorted(holders, reverse=chance.random() < 0.8)
            chosen = order[: chance.randrange(1, 8)]
            log.release(chosen)
            for sequence in chosen:
                holders[sequence] -= 1
                if not holders[sequence]:
                    del holders[sequence]
        held = sorted(holders)
        assert [message.sequence for message in log.held(1, log.next_sequence)] == held
        assert [message.sequence for message in log.select(held)] == held
        assert log.floor() == min(held, default=log.next_sequence)
        assert all((log.get(sequence) is not None) == (sequence in holders) for sequence in range(log.next_sequence))


def test_few_old_messages_do_not_keep_the_log_long() -> None:
    log = TopicLog()
    _append(log, 3)  # say, dead letters
    for _ in range(100):
        log.release(_append(log, 1_000))
    assert log.next_sequence == 100_004
    assert len(log._messages) <= 4 * (3 + 2 * log_module._CUT_AT_LEAST)
    assert [message.sequence for message in log.held(1, 200_000)] == [1, 2, 3]


def test_a_topic_without_subscriptions_does_not_grow() -> None:
    log = TopicLog()
    log.release(_append(log, 10))
    for _ in range(100):
        _append(log, 1_000, holders=0)
    assert len(log._messages) <= 2 * log_module._CUT_AT_LEAST
    assert log.next_sequence == 100_011
