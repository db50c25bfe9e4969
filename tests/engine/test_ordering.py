"""Ordering keys alone, against lists; and few keys with many messages each."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from heliograph.engine import ordering, selecting
from heliograph.engine.engine import Engine
from heliograph.engine.message import Draft
from heliograph.engine.ordering import OrderingKeys
from heliograph.engine.page import PAGE_MESSAGES
from tests.engine.bench import Bench
from tests.engine.invariants import recovered

STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["admit", "pass on", "leave"]), st.integers(1, 20)))


@given(STEPS)
def test_of_each_key_the_lowest_that_waits_is_next_whoever_left_or_came_back(steps: list[tuple[str, str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "_SPENT_MAX", 2)
        keys = OrderingKeys()
        turns: dict[str, int] = {}
        behind: dict[str, list[int]] = {"a": [], "b": []}
        for key, what, sequence in steps:
            waiting = behind[key]
            if what == "admit":
                if sequence in waiting or turns.get(key) == sequence:
                    continue
                assert keys.admit(key, sequence) is (key not in turns)
                if key in turns:
                    waiting.append(sequence)
                    waiting.sort()
                else:
                    turns[key] = sequence
            elif what == "leave":
                assert keys.leave(key, sequence) is (sequence in waiting)
                if sequence in waiting:
                    waiting.remove(sequence)
            elif key in turns:
                following = keys.pass_on(key)
                assert following == (waiting[0] if waiting else None)
                del turns[key]
                if following is not None:
                    turns[key] = waiting.pop(0)
            assert keys.waiting == len(behind["a"]) + len(behind["b"])
            assert sorted(keys.fronts()) == sorted(queue[0] for queue in behind.values() if queue)
            assert sorted(keys) == sorted(behind["a"] + behind["b"])


def test_a_pull_looks_through_a_bounded_number_for_another_key_and_wakes_whoever_waits_to_look_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selecting.Selecting._load, "__kwdefaults__", {"at_most": 2_000})
    bench = Bench(enable_message_ordering=True)
    bench.engine.publish("t", [Draft(b"", ordering_key="many") for _ in range(9_999)], bench.now_ns)
    bench.engine.publish("t", [Draft(b"", ordering_key="other")], bench.now_ns)
    first = bench.engine.pull("s", 1, bench.now_ns)
    assert [delivery.message.ordering_key for delivery in first] == ["many"]

    looks = 0
    while not (second := bench.engine.pull("s", 1, bench.now_ns)):
        assert bench.engine.woken == {"s"}, "nobody would ever look further"
        bench.engine.woken.clear()
        looks += 1
        assert looks < 10
    assert [delivery.message.ordering_key for delivery in second] == ["other"]
    assert looks == 9_999 // (1 + 4 * PAGE_MESSAGES), "not a bounded number at a time"


def test_who_waits_for_the_turn_of_a_key_takes_next_to_nothing_in_a_checkpoint_and_comes_in_order_after_it() -> None:
    bench = Bench(enable_message_ordering=True)
    bench.engine.publish("t", [Draft(b"", ordering_key="ab"[i % 2]) for i in range(2_000)], bench.now_ns)
    for delivery in bench.pull(1):
        bench.ack(delivery)
    held = bench.pull(100)
    assert [delivery.message.sequence for delivery in held] == [2, 3]
    assert len(bench.engine.subscription("s").capture().earlier) < 40

    messages = list(bench.engine.topics["t"].log.held(1, 2_000))
    checkpoint = bench.engine.checkpoint()
    engine = Engine(lambda _topic, first, last: [each for each in messages if first <= each.sequence <= last])
    bench.engine = recovered(checkpoint, bench.now_ns, engine)
    delivered = []
    while held:
        bench.ack(*held)
        delivered += [delivery.message.sequence for delivery in held]
        held = bench.pull(100)
    assert delivered == list(range(2, 2_001))
