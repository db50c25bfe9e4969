"""Stories that once went wrong, found by the machine (`seeking_machine.py`)."""

from __future__ import annotations

from heliograph.engine.engine import Engine
from heliograph.engine.message import Draft, Message
from heliograph.engine.settings import SubscriptionSettings, TopicSettings
from tests.engine.invariants import check_engine
from tests.engine.seeking_machine import MachineLog

NOW_NS = 10**18


def test_a_filter_lets_back_what_is_not_durable_yet_and_another_subscription_holds() -> None:
    engine = Engine()
    engine.create_topic("t", TopicSettings(), NOW_NS)
    engine.create_subscription("all", "t", SubscriptionSettings(), NOW_NS)
    engine.create_subscription("s", "t", SubscriptionSettings(filter="attributes:a"), NOW_NS)
    engine.create_snapshot("snap", "s", NOW_NS, expires_ns=0, labels={}, resource=b"")
    engine.publish("t", [Draft(b"", {"a": "1"}), Draft(b"")], NOW_NS)
    (delivery,) = engine.pull("s", 10, NOW_NS)
    engine.acknowledge("s", [delivery.ack_id], NOW_NS)
    nothing: list[Message] = []
    engine.seek_to_snapshot("s", "snap", MachineLog(nothing, 0), NOW_NS)
    assert [one.message.sequence for one in engine.pull("s", 10, NOW_NS)] == [1]
    check_engine(engine)
