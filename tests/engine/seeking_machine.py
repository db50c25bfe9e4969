"""The machine of `machine.py` with seeking: to times and snapshots, in a log of which the end may not be durable yet,
and of which pages leave memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from heliograph.engine.engine import Engine
from heliograph.engine.message import Message
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings, TopicSettings
from tests.engine.machine import CALLS, START_NS, SUBSCRIPTIONS, EngineMachine, seldom, settings_with

RETENTION_NS = {"t1": 20 * SECOND_NS}
SNAPSHOTS = ("n0", "n1")

seeking_settings = settings_with(retain_acked_messages=seldom(True, False), capacity=st.none())
SEEKING_CALLS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = CALLS | {
    "seek": (
        6,
        {"who": st.integers(0, 7), "back_ns": st.integers(-2, 30).map(lambda n: n * SECOND_NS), "lag": seldom(0, 1, 4)},
    ),
    "seek_to_snapshot": (4, {"who": st.integers(0, 7), "snapshot": st.sampled_from(SNAPSHOTS), "lag": seldom(0, 1, 4)}),
    "snapshot": (3, {"who": st.integers(0, 7), "name": st.sampled_from(SNAPSHOTS), "made": seldom(True, False)}),
    "shed": (3, {}),
}
seeking_calls = st.one_of(
    [
        st.tuples(st.just(name), st.fixed_dictionaries(arguments))
        for name, (times, arguments) in SEEKING_CALLS.items()
        for _ in range(times)
    ]
)


class MachineLog:
    """What a store would have of a topic's log: all but the last few messages."""

    def __init__(self, messages: list[Message], lag: int) -> None:
        self.messages = messages[: len(messages) - lag] if lag else messages

    @property
    def last(self) -> int:
        return len(self.messages)

    def bounds(self) -> tuple[int, int]:
        return 1, self.last

    def offset(self, published_ns: int) -> int:
        return next((one.sequence for one in self.messages if one.publish_time_ns >= published_ns), self.last + 1)

    def read(self, first: int, last: int) -> Iterator[list[Message]]:
        yield self.messages[first - 1 : last]


class SeekingMachine(EngineMachine):
    """See the module."""

    def _new_engine(self) -> Engine:
        return self.engine_class(self._durable)

    @initialize(settings=st.tuples(seeking_settings, seeking_settings))
    def begin(self, settings: tuple[SubscriptionSettings, SubscriptionSettings]) -> None:
        super().begin(settings)
        self._create_subscription(SUBSCRIPTIONS[2], "t1", settings[1])

    @rule(call=seeking_calls)
    def step(self, call: tuple[str, dict[str, Any]]) -> None:
        name, arguments = call
        getattr(self, name)(**arguments)

    def _create_topic(self, name: str) -> None:
        if name not in self.model.topics:
            retention_ns = RETENTION_NS.get(name, 0)
            self.engine.create_topic(name, TopicSettings(retention_ns), self.now_ns)
            self.model.create_topic(name, retention_ns)

    def _log_of(self, name: str, lag: int) -> MachineLog:
        """After everything so far was told to the store, which may not have written the last of it."""
        self._keep_facts()
        subscription = self.engine.subscriptions.get(name)
        messages = self._durable(subscription.topic.number, 1, 10**9) if subscription is not None else []
        return MachineLog(messages, lag)

    def seek(self, who: int, back_ns: int, lag: int) -> None:
        name, instant_ns = self._one_of(who), max(self.now_ns - back_ns, START_NS)
        log = self._log_of(name, lag)
        self._both(
            lambda: self.engine.seek_to_time(name, instant_ns, log, self.now_ns),
            lambda: self.model.seek_to_time(name, instant_ns, self.now_ns, log.last),
        )
        self._begins_anew(name)

    def seek_to_snapshot(self, who: int, snapshot: str, lag: int) -> None:
        name = self._one_of(who)
        log = self._log_of(name, lag)
        self._both(
            lambda: self.engine.seek_to_snapshot(name, snapshot, log, self.now_ns),
            lambda: self.model.seek_to_snapshot(name, snapshot, self.now_ns, log.last),
        )
        self._begins_anew(name)

    def _begins_anew(self, name: str) -> None:
        self.attempts = {key: attempt for key, attempt in self.attempts.items() if key[0] != name}

    def snapshot(self, who: int, name: str, made: bool) -> None:
        if made:
            subscription = self._one_of(who)
            options: dict[str, Any] = {"expires_ns": 0, "labels": {}, "resource": b""}
            self._both(
                lambda: self.engine.create_snapshot(name, subscription, self.now_ns, **options) and None,
                lambda: self.model.create_snapshot(name, subscription, self.now_ns),
            )
        elif name in self.model.snapshots:
            self._both(lambda: self.engine.delete_snapshot(name, self.now_ns), lambda: self.model.tick(self.now_ns))
            del self.model.snapshots[name]

    def shed(self) -> None:
        """Whatever may leave memory does."""
        self._keep_facts()
        self.engine.shed_memory(0, 2**60)
        self.replica.shed_memory(0, 2**60)
