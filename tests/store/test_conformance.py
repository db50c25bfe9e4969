"""What every store does."""

from __future__ import annotations

import threading

import pytest

from heliograph.engine.dead_letter import DeadLetterPolicy, DeadLetterReason
from heliograph.engine.facts import (
    CheckpointBegun,
    DeadLettersForwarded,
    DeadLettersPurged,
    DedupIdsNoted,
    Fact,
    LeasesExtended,
    MessagesDeadLettered,
    MessagesDropped,
    MessagesLeased,
    MessagesPublished,
    MessagesPurged,
    MessagesReturned,
    ReturnCause,
    SubscriptionCreated,
    SubscriptionDeleted,
    TopicCreated,
    TopicDeleted,
    TopicRestored,
)
from heliograph.engine.message import Extras, Message
from heliograph.engine.ranges import from_runs
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import Capacity, SubscriptionSettings, TopicSettings
from heliograph.errors import Unavailable
from heliograph.store.protocol import Store
from tests.store.conftest import Reopen
from tests.store.facts import acknowledged, committed, messages, published, put, recovered, sequences, until

RICH_SETTINGS = SubscriptionSettings(
    enable_message_ordering=True,
    retry_policy=RetryPolicy(10, 600, (1, 2, 3)),
    dead_letter_policy=DeadLetterPolicy("dead", 5),
    capacity=Capacity(10_000, 100, refuse=True),
    filter='attributes.a = "ü"',
    labels={"a": "b"},
    resource=b"\x00\xff",
)

FACTS: list[Fact] = [
    TopicCreated("t1", 1, TopicSettings(5, {"team": "x"}, b"\x01"), 10**18),
    SubscriptionCreated("s", 1, "t1", RICH_SETTINGS, 10**18 + 1),
    MessagesDropped("s", [1]),
    DedupIdsNoted("t1", ["ü"], [1], 10**18),
    MessagesLeased("s", 1, [2, 3], 10**18, 10**18 + 10, "consumer"),
    LeasesExtended("s", 1, [2], 10**18 + 20),
    acknowledged(2),
    MessagesReturned("s", [3], [0], ReturnCause.RELEASED),
    MessagesDeadLettered("s", [3], DeadLetterReason.TTL_EXPIRED, 10**18, None),
    MessagesDeadLettered("s", [4], DeadLetterReason.EXPLICIT_NACK, 10**18, ReturnCause.NACKED),
    DeadLettersForwarded("s", [3]),
    DeadLettersPurged("s", [4]),
    MessagesPurged("s", [5]),
    SubscriptionDeleted("s"),
    TopicDeleted("t1", clears_backlog=True),
]


def test_every_fact_comes_back_in_order_after_a_restart(reopen: Reopen) -> None:
    store = reopen()
    for fact in FACTS:
        store.append([fact])
    assert list(reopen().recover()) == FACTS


def test_published_messages_come_back_in_their_place(reopen: Reopen) -> None:
    store = reopen()
    store.append([published(1, 2), acknowledged(1)])
    store.append([published(3, 3), published(1, 200, topic_number=2), acknowledged(2, 3)])
    store.append([published(4, 300), published(301, 301)])
    assert list(reopen().recover()) == [
        recovered(1, 2),
        acknowledged(1),
        recovered(3, 3),
        recovered(1, 200, topic_number=2),
        acknowledged(2, 3),
        recovered(4, 300),
        recovered(301, 301),
    ]


def test_every_part_of_a_message_comes_back(reopen: Reopen) -> None:
    store = reopen()
    rich = Message(1, 10**18, b"\x00\xff" * 3, {"ü": "ö", "b": ""}, "key", Extras(9, 1, 2, 3, "text/plain"))
    store.append([MessagesPublished("t1", 1, [rich])])
    assert list(reopen().recover()) == [MessagesPublished("t1", 1, [rich], 1, 1)]


def test_an_append_of_no_facts_waits_for_those_before(store: Store) -> None:
    store.append([published(1, 3)])
    assert committed(store.append([]))
    assert sequences(store, 1, 3) == [1, 2, 3]


def test_an_append_of_no_facts_to_an_idle_store_is_committed(store: Store) -> None:
    assert store.append([]).done


def test_a_publication_without_messages_is_kept_as_it_is(reopen: Reopen) -> None:
    put(reopen(), MessagesPublished("t1", 1, []))
    assert list(reopen().recover()) == [MessagesPublished("t1", 1, [])]


def test_appends_go_on_after_a_restart(reopen: Reopen) -> None:
    put(reopen(), published(1, 2))
    store = reopen()
    assert list(store.recover()) == [recovered(1, 2)]
    put(store, published(3, 4))
    assert sequences(store, 1, 10) == [1, 2, 3, 4]
    assert list(reopen().recover()) == [recovered(1, 2), recovered(3, 4)]


# ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_read_log_gives_whole_messages(store: Store) -> None:
    put(store, published(1, 3))
    assert [message for batch in store.read_log(1, 1, 3) for message in batch] == messages(1, 3)


@pytest.mark.parametrize(
    ("first", "last"), [(1, 1000), (1, 1), (100, 101), (101, 101), (150, 160), (199, 202), (500, 2000), (-5, 3)]
)
def test_read_log_cuts_batches_exactly(store: Store, first: int, last: int) -> None:
    for start in range(1, 1000, 100):
        store.append([published(start, start + 99)])
    store.append([])
    put(store, published(1, 7, topic_number=2))
    assert sequences(store, first, last) == list(range(max(first, 1), min(last, 1000) + 1))


def test_read_log_gives_nothing_outside(store: Store) -> None:
    put(store, published(1, 3))
    assert [sequences(store, 4, 9), sequences(store, 3, 2), sequences(store, 1, 3, topic_number=7)] == [[], [], []]


def test_read_log_crosses_its_own_batches(store: Store) -> None:
    for sequence in range(1, 2501):
        store.append([published(sequence, sequence)])
    put(store, published(2501, 2600))
    assert sequences(store, 1, 9999) == list(range(1, 2601))


def test_read_log_never_gives_an_empty_batch(store: Store) -> None:
    put(store, published(1, 10), published(11, 20))
    assert [] not in list(store.read_log(1, 5, 15))


def test_log_bounds_of_an_unknown_topic(store: Store) -> None:
    assert store.log_bounds(1) == (1, 0)


def test_log_bounds_tell_the_first_and_last_sequence(store: Store) -> None:
    put(store, published(1, 3), published(1, 9, topic_number=2), published(4, 8))
    assert store.log_bounds(1) == (1, 8)


@pytest.mark.parametrize(("after_ns", "sequence"), [(0, 1), (10**18 + 4, 4), (10**18 + 8, 8), (10**18 + 9, 9)])
def test_a_log_offset_by_time(store: Store, after_ns: int, sequence: int) -> None:
    put(store, published(1, 3), published(1, 9, topic_number=2), published(4, 8))
    assert store.log_offset(1, after_ns) == sequence


def test_a_log_offset_of_an_unknown_topic(store: Store) -> None:
    assert store.log_offset(1, 10**18) == 1


def test_a_log_extent_is_a_range_of_about_so_many_bytes(store: Store) -> None:
    put(store, published(1, 100), published(101, 200))
    assert store.log_extent(1, 1, 0) == 1
    assert store.log_extent(1, 1, 10**6) == 200
    assert store.log_extent(1, 60, 10**6) == 200
    lasts = [store.log_extent(1, 50, size) for size in range(100, 3_000, 100)]
    assert lasts == sorted(lasts)
    assert 50 <= lasts[0] < 65
    assert 100 < lasts[-1] <= 200


def test_read_log_beside_appends(store: Store) -> None:
    """Readers on other threads see a prefix without holes while messages are appended."""
    wrong: list[list[int]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen = sequences(store, 1, 10**9)
            if seen != list(range(1, len(seen) + 1)):
                wrong.append(seen)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(1, 1001, 10):
        store.append([published(start, start + 9)])
    put(store, published(1001, 1001))
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(sequences(store, 1, 10**9)) == 1001


# ── trim ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def trimmed(reopen: Reopen) -> Store:
    store = reopen()
    put(store, published(1, 100), published(101, 200), published(201, 201), published(1, 5, topic_number=2))
    assert committed(store.checkpoint([CheckpointBegun(2), restored(1, 202), restored(2, 6)]))
    store.trim(1, 151)
    return store


def test_trimmed_messages_are_read_no_more(trimmed: Store) -> None:
    assert sequences(trimmed, 1, 999) == list(range(151, 202))


def test_log_bounds_after_a_trim(trimmed: Store) -> None:
    assert trimmed.log_bounds(1) == (151, 201)


def test_a_log_offset_after_a_trim_is_never_before_it(trimmed: Store) -> None:
    assert [trimmed.log_offset(1, 10**18 + instant_ns) for instant_ns in (0, 150, 160, 500)] == [151, 151, 160, 202]


def test_a_trim_touches_no_other_topic(trimmed: Store) -> None:
    assert sequences(trimmed, 1, 9, topic_number=2) == [1, 2, 3, 4, 5]


def test_a_trim_never_goes_back(trimmed: Store) -> None:
    trimmed.trim(1, 10)
    assert trimmed.log_bounds(1) == (151, 201)


def test_a_trimmed_log_grows_on(trimmed: Store) -> None:
    put(trimmed, published(202, 210))
    assert sequences(trimmed, 1, 999) == list(range(151, 211))


def test_a_log_trimmed_altogether_is_empty_and_grows_on(trimmed: Store) -> None:
    trimmed.trim(1, 202)
    assert (trimmed.log_bounds(1), sequences(trimmed, 1, 999)) == ((202, 201), [])
    put(trimmed, published(202, 203))
    assert (trimmed.log_bounds(1), sequences(trimmed, 1, 999)) == ((202, 203), [202, 203])


@pytest.fixture
def straggling(reopen: Reopen) -> Store:
    """Trimmed up to 151, where 3, and 120 to 160, are held."""
    store = reopen()
    put(store, published(1, 100), published(101, 200), published(1, 5, topic_number=2))
    put(store, published(201, 300))
    checkpoint(store)
    store.trim(1, 151, held=[(3, 4), (120, 161)])
    put(store, acknowledged(1))  # it goes along
    return store


def checkpoint(store: Store) -> None:
    """A trim comes behind one."""
    assert committed(store.checkpoint([CheckpointBegun(2), restored(1, 301), restored(2, 6)]))


def restored(number: int, next_sequence: int) -> TopicRestored:
    return TopicRestored(f"t{number}", number, TopicSettings(), 1, False, True, next_sequence)


def test_what_is_held_stays_when_all_around_it_is_trimmed(straggling: Store) -> None:
    left = sequences(straggling, 1, 999, held=True)
    assert {3, *range(120, 301)} <= set(left)
    assert sorted(left) == left


def test_what_is_held_before_a_log_begins_is_no_part_of_it(straggling: Store) -> None:
    assert sequences(straggling, 1, 999) == list(range(151, 301))
    assert straggling.log_bounds(1) == (151, 300)


def test_a_store_tells_what_is_held_before_a_log_begins(straggling: Store) -> None:
    left = set(from_runs(straggling.held_below(1)))
    assert {3, *range(120, 151)} <= left <= set(range(1, 151))
    assert straggling.held_below(2) == []


def test_what_was_held_goes_with_the_trim_that_does_not_name_it_any_more(straggling: Store) -> None:
    straggling.trim(1, 151, held=[(150, 152)])
    until(lambda: 3 not in set(from_runs(straggling.held_below(1))))
    assert 150 in sequences(straggling, 1, 999, held=True)


def test_a_later_trim_that_reaches_less_far_takes_nothing_behind_its_reach(straggling: Store) -> None:
    straggling.trim(1, 10)
    until(lambda: 3 not in set(from_runs(straggling.held_below(1))))
    assert set(range(120, 151)) <= set(sequences(straggling, 1, 999, held=True))
    assert straggling.log_bounds(1) == (151, 300)


def test_what_is_held_stays_through_a_restart_until_the_next_trim(straggling: Store, reopen: Reopen) -> None:
    store = reopen()
    list(store.recover())
    assert {3, *range(120, 301)} <= set(sequences(store, 1, 999, held=True))
    store.trim(1, 151, held=[(3, 4)])
    store = reopen()
    list(store.recover())
    assert 3 in sequences(store, 1, 999, held=True)


def test_a_trim_holds_after_a_restart(trimmed: Store, reopen: Reopen) -> None:
    store = reopen()
    list(store.recover())
    assert (store.log_bounds(1), sequences(store, 1, 160)) == ((151, 201), list(range(151, 161)))


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_close_commits_what_is_queued(reopen: Reopen) -> None:
    store = reopen()
    commits = [store.append([acknowledged(number)]) for number in range(100)]
    store.close()
    assert all(commit.done and commit.error is None for commit in commits)


def test_close_is_idempotent(store: Store) -> None:
    store.close()
    store.close()


def test_a_closed_store_is_unavailable(store: Store) -> None:
    put(store, published(1, 1))
    store.close()
    with pytest.raises(Unavailable, match="closed"):
        store.append([acknowledged(1)])
    with pytest.raises(Unavailable, match="closed"):
        list(store.read_log(1, 1, 1))
    with pytest.raises(Unavailable, match="closed"):
        store.log_bounds(1)
    with pytest.raises(Unavailable, match="closed"):
        store.trim(1, 2)


def test_a_store_that_works_is_not_failing(store: Store) -> None:
    put(store, published(1, 1))
    assert store.failing is None
