"""The topic's log alone, against a dictionary: in memory, with pages out of it, and after a checkpoint."""

from __future__ import annotations

import random

import pytest

from heliograph.engine.engine import Engine
from heliograph.engine.log import OVERHEAD_BYTES, SEALED_BYTES, TopicLog
from heliograph.engine.message import Draft, Extras, Message
from heliograph.engine.page import PAGE_MESSAGES
from heliograph.engine.ranges import from_runs, to_runs
from heliograph.engine.residency import Residency
from heliograph.engine.settings import SubscriptionSettings, TopicSettings
from heliograph.engine.timekeeping import READ_AGAIN_NS
from heliograph.errors import Internal, Unavailable


class Durable:
    """What a store would give back: every message that was ever appended, or the first `written` of them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.written: int | None = None
        self.reads = 0

    def read(self, first: int, last: int) -> list[Message]:
        self.reads += 1
        return self.messages[: self.written][first - 1 : last]

    def append(self, log: TopicLog, count: int, holders: int = 1) -> list[int]:
        first = log.next_sequence
        messages = [Message(sequence, 1, b"x" * (sequence % 7)) for sequence in range(first, first + count)]
        self.messages += messages
        log.append(messages, holders)
        return list(range(first, first + count))


def assert_holds(log: TopicLog, holders: dict[int, int], chance: random.Random) -> None:
    held = sorted(holders)
    assert list(log.held_sequences(1, log.next_sequence)) == held
    assert log.floor() == min(held, default=log.next_sequence)
    some = sorted(chance.sample(held, min(len(held), 20)))
    assert [message.sequence for message in log.select(some)] == some
    assert all(log.holders_of(sequence) == holders[sequence] for sequence in some)
    assert (log.get(chance.randrange(1, log.next_sequence + 1)) is not None) <= bool(held)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_was_released_and_sent_out_in_whatever_order_the_held_ones_are_found(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.engine.log.SEALED_BYTES", 20_000 if seed % 3 else 10**9)
    chance, durable, residency = random.Random(seed), Durable(), Residency()
    log, holders = TopicLog(durable.read, residency), dict[int, int]()
    ends, durable.written = [0], 0  # of the log, after each publication
    for _ in range(150):
        residency.fact_count = len(ends)
        kind = chance.random()
        if kind < 0.5:
            count = chance.choice([0, 1, 1, 2]) if seed % 2 else 1
            holders |= {sequence: count for sequence in durable.append(log, chance.randrange(1, 400), count) if count}
            ends.append(log.next_sequence - 1)
        elif kind < 0.9 and holders:
            # the youngest are released first, now and then, so that old ones stay
            order = sorted(holders, reverse=chance.random() < 0.4)
            chosen = order[: chance.randrange(1, 900)]
            log.release(chosen)
            for sequence in chosen:
                holders[sequence] -= 1
                if not holders[sequence]:
                    del holders[sequence]
        else:
            facts = max(len(ends) - 1 - chance.choice([0, 0, 1, 3]), ends.index(durable.written))
            durable.written = ends[facts]
            residency.shed(chance.choice([0, 500, 5_000]), facts)
        assert_holds(log, holders, chance)
    assert [message.sequence for message in log.held(1, log.next_sequence)] == sorted(holders)
    assert durable.reads > 0


@pytest.mark.parametrize("seed", range(10))
def test_a_log_restored_from_runs_holds_what_was_held_and_grows_on(seed: int) -> None:
    chance, durable = random.Random(seed), Durable()
    for _ in range(chance.randrange(1, 4_000)):
        durable.messages.append(Message(len(durable.messages) + 1, 1, b"x"))
    log, holders = TopicLog(durable.read, Residency()), dict[int, int]()
    log.skip(len(durable.messages))
    for _ in range(chance.choice([1, 3])):  # subscriptions
        held = [sequence for sequence in range(1, log.next_sequence) if chance.random() < chance.choice([0.1, 0.999])]
        if seed % 2:
            log.hold_all(held)
        else:
            for first, stop in to_runs(held):
                log.hold(first, stop)
        for sequence in held:
            holders[sequence] = holders.get(sequence, 0) + 1
    assert_holds(log, holders, chance)
    holders |= dict.fromkeys(durable.append(log, 700), 1)
    assert_holds(log, holders, chance)
    log.release(sorted(holders))
    assert_holds(log, {s: n - 1 for s, n in holders.items() if n > 1}, chance)


def test_few_old_messages_do_not_keep_the_log_long() -> None:
    durable, log = Durable(), TopicLog()
    durable.append(log, 3)  # say, dead letters
    for _ in range(100):
        log.release(durable.append(log, 1_000))
    assert log.next_sequence == 100_004
    assert len(log._pages) <= 2
    assert [message.sequence for message in log.held(1, 200_000)] == [1, 2, 3]


def test_a_topic_without_subscriptions_does_not_grow() -> None:
    durable, log = Durable(), TopicLog()
    log.release(durable.append(log, 10))
    for _ in range(100):
        durable.append(log, 1_000, holders=0)
    assert not log._pages
    assert log.next_sequence == 100_011


def test_pages_leave_memory_newest_first_and_only_once_they_are_durable() -> None:
    durable, residency = Durable(), Residency()
    log = TopicLog(durable.read, residency)
    for fact in range(1, 5):
        residency.fact_count = fact
        durable.append(log, PAGE_MESSAGES)
    page_bytes = residency.bytes // 4
    residency.shed(2 * page_bytes + 100, durable_facts=3)
    assert [page.out is None for page in log._pages.values()] == [True, False, False, True]
    log.select([PAGE_MESSAGES + 1])
    assert durable.reads == 1
    residency.shed(2 * page_bytes + 100, durable_facts=4)
    assert [page.out is None for page in log._pages.values()] == [True, True, False, False]


def test_few_large_messages_leave_memory_too_and_the_log_grows_on_without_reading_them() -> None:
    durable, residency = Durable(), Residency()
    log = TopicLog(durable.read, residency)
    for sequence in range(1, 301):
        residency.fact_count = sequence
        durable.messages.append(Message(sequence, 1, b"x" * 10_000))
        log.append(durable.messages[-1:], 1)
        residency.shed(100_000, sequence - 5)
        in_memory = sum([message is not None for page in log._pages.values() for message in page.messages])
        assert in_memory * 10_136 <= 100_000 + 5 * 10_136 + 2 * SEALED_BYTES
    assert durable.reads == 0
    assert [message.sequence for message in log.held(1, 300)] == list(range(1, 301))
    assert durable.reads == 1


def test_the_end_of_the_log_is_counted_once_though_it_was_brought_in_before_it_was_full() -> None:
    durable, residency = Durable(), Residency()
    durable.messages = [Message(sequence, 1, b"x") for sequence in range(1, 11)]
    log = TopicLog(durable.read, residency)
    log.skip(10)
    log.hold(1, 11)
    assert len(log.select([3])) == 1
    log.release(durable.append(log, PAGE_MESSAGES)[PAGE_MESSAGES - 10 :])
    log.release(list(range(1, PAGE_MESSAGES + 1)))
    assert residency.bytes == 0


def test_a_message_that_is_held_and_missing_in_the_store_is_an_error_and_never_passed_over() -> None:
    durable, residency = Durable(), Residency()
    log = TopicLog(durable.read, residency)
    durable.append(log, PAGE_MESSAGES)
    residency.shed(0, 1)
    del durable.messages[7]
    with pytest.raises(Internal, match="1 messages from 1 on"):
        list(log.held(1, 5))


def test_what_is_fetched_is_read_from_the_store_once_and_not_at_all_if_it_is_here() -> None:
    durable, residency = Durable(), Residency()
    log = TopicLog(durable.read, residency)
    durable.append(log, 4 * PAGE_MESSAGES)
    residency.shed(3 * PAGE_MESSAGES * OVERHEAD_BYTES // 2, 1)
    out = [page.out is not None for page in log._pages.values()]
    log.fetch(range(1, 4 * PAGE_MESSAGES + 1))
    log.select(range(1, 4 * PAGE_MESSAGES + 1))
    assert durable.reads == sum(out) > 0


def test_pages_that_came_and_went_are_not_remembered_for_ever() -> None:
    """A broker that stays within its memory budget never sends a page out, and yet must not note all that ever were."""
    durable, residency = Durable(), Residency()
    log = TopicLog(durable.read, residency)
    for _ in range(1_000):
        log.release(durable.append(log, PAGE_MESSAGES))
    assert residency.bytes == 0
    assert len(residency._candidates) <= 64


def test_a_delayed_message_that_cannot_be_read_when_it_is_due_is_due_again() -> None:
    class Failing(Durable):
        failing = False

        def read(self, first: int, last: int) -> list[Message]:
            if self.failing:
                raise Unavailable("the disk is away")
            return super().read(first, last)

    durable = Failing()
    engine = Engine(lambda number, first, last: durable.read(first, last))
    engine.create_topic("t", TopicSettings(), 1)
    engine.create_subscription("s", "t", SubscriptionSettings(prioritised=True, message_retention_ns=0), 1)
    engine.publish("t", [Draft(b"x", extras=Extras(available_at_ns=10))] * PAGE_MESSAGES, 1)
    durable.messages = list(engine.topics["t"].log.held(1, PAGE_MESSAGES))
    engine.shed_memory(0, 10)
    durable.failing = True
    engine.tick(10)
    assert len(engine.subscriptions["s"].unacknowledged()) == PAGE_MESSAGES
    durable.failing = False
    engine.tick(10 + READ_AGAIN_NS)
    assert len(engine.pull("s", 1_000, 10 + READ_AGAIN_NS)) == PAGE_MESSAGES


# ── what may be trimmed ─────────────────────────────────────────────────────────────────────────────────────────────


def filled(pages: int) -> TopicLog:
    log = TopicLog()
    log.append([Message(sequence, 0, b"x") for sequence in range(1, pages * PAGE_MESSAGES + 1)], 1)
    return log


def test_what_nobody_holds_is_settled_up_to_the_first_that_is_held() -> None:
    log = filled(3)
    log.release(range(1, 101))
    assert log.settled(10) == (101, [])


def test_a_straggler_does_not_keep_what_is_settled_behind_it() -> None:
    log = filled(8)
    log.release([*range(1, 5), *range(6, 7 * PAGE_MESSAGES + 1)])
    assert log.settled(10) == (7 * PAGE_MESSAGES + 1, [(5, 6)])


def test_a_backlog_that_waits_is_left_whole_for_those_who_read_the_log() -> None:
    log = filled(8)
    log.release(range(6 * PAGE_MESSAGES + 1, 6 * PAGE_MESSAGES + 501))
    assert log.settled(10) == (1, [])


def test_a_backlog_is_passed_when_far_more_lies_behind_it() -> None:
    log = filled(9)
    log.release(range(2 * PAGE_MESSAGES + 1, 8 * PAGE_MESSAGES + 1))
    assert log.settled(10) == (8 * PAGE_MESSAGES + 1, [(1, 2 * PAGE_MESSAGES + 1)])


def test_messages_held_here_and_there_are_passed_with_what_lies_between() -> None:
    log = filled(5)
    log.release([sequence for sequence in range(1, 4 * PAGE_MESSAGES + 1) if sequence % 10])
    up_to, held = log.settled(1_000)
    assert (up_to, held[:2], len(held)) == (4 * PAGE_MESSAGES + 1, [(10, 11), (20, 21)], 4 * PAGE_MESSAGES // 10)


def test_no_more_runs_are_passed_than_asked_for() -> None:
    log = filled(5)
    log.release([sequence for sequence in range(1, 4 * PAGE_MESSAGES + 1) if sequence % 10])
    up_to, held = log.settled(60)
    assert (up_to, len(held)) == (PAGE_MESSAGES + 1, PAGE_MESSAGES // 10)


def test_an_empty_log_is_settled_altogether() -> None:
    log = filled(3)
    log.release(range(1, 3 * PAGE_MESSAGES + 1))
    assert log.settled(10) == (3 * PAGE_MESSAGES + 1, [])


def test_what_nobody_held_has_one_holder_when_it_is_taken_back() -> None:
    """Found by the model: a page that grew with two holders each counted one for messages that nobody held."""
    durable = [Message(sequence, 0, b"") for sequence in range(1, 4)]
    log = TopicLog(lambda first, last: durable[first - 1 : last])
    log.append(durable[:2], 1)
    log.release([1])
    log.append(durable[2:], 2)
    log.take_back([(1, 3)])
    assert [log.holders_of(sequence) for sequence in (1, 2, 3)] == [1, 2, 2]
    assert [message.sequence for message in log.held(1, 3)] == [1, 2, 3]


@pytest.mark.parametrize("seed", range(10))
def test_nothing_that_is_held_is_settled(seed: int) -> None:
    """And nothing is said to be held that is not, in memory or out of it, also of a page that grew on outside."""
    chance, durable, residency = random.Random(seed), Durable(), Residency()
    log = TopicLog(durable.read, residency)
    held: set[int] = set()
    for _ in range(20):
        held |= set(durable.append(log, chance.randrange(1, 2_000)))
        share = chance.choice([0.02, 0.5, 0.98, 1.0])
        released = sorted(sequence for sequence in held if chance.random() < share)
        log.release(released)
        held -= set(released)
        if chance.random() < 0.5:
            residency.shed(chance.choice([0, 5_000]), 0)
        up_to, runs = log.settled(chance.choice([10, 20_000]))
        assert list(from_runs(runs)) == sorted(sequence for sequence in held if sequence < up_to)
        assert runs == to_runs(from_runs(runs))
