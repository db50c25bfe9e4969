"""What a killed broker must not lose (system test: real processes, the official client)."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from heliograph.demo import topics
from heliograph.demo.broker_process import BrokerProcess
from heliograph.demo.flights import Flight, by_airline
from heliograph.demo.publishers import Answer, Publishers
from heliograph.demo.topics import NAMES
from heliograph.spark.log_client import LogClient
from tests.demo.samples import flight

FLIGHTS = 3_000
AIRLINES = ("AA", "DL", "EV", "UA")


def many_flights(seed: int) -> dict[str, list[Flight]]:
    chance = random.Random(seed)
    return by_airline(
        flight(
            row,
            carrier=chance.choice(AIRLINES),
            tailnum=chance.choice([None, *(f"N{number}" for number in range(200))]),
            sched_dep_time=chance.randrange(24) * 100 + chance.randrange(60),
            month=chance.randrange(1, 13),
        )
        for row in range(1, FLIGHTS + 1)
    )


def publish_through_a_crash(broker: BrokerProcess, airlines: dict[str, list[Flight]], crash_after: int) -> list[Answer]:
    """Publish everything; the broker is killed after so many answers, and started again. All answers."""
    publishers = Publishers(NAMES.flights, airlines)
    publishers.start()
    try:
        while publishers.done() < crash_after:
            assert publishers.failure() is None
            publishers.complete.wait(0.001)
        broker.kill()
        assert not publishers.complete.is_set(), "the crash came too late to prove anything"
        broker.start()
        assert publishers.complete.wait(120), f"{publishers.done()} of {FLIGHTS} answered"
        return publishers.result()
    finally:
        publishers.stop()


def log_of(broker: BrokerProcess) -> dict[str, bytes]:
    """Message ids and data of the whole topic."""
    client = LogClient(broker.endpoint)
    bounds = client.bounds(NAMES.flights)
    return {
        row["message_id"]: row["data"]
        for batch in client.read(
            NAMES.flights, bounds.topic_number, bounds.first, bounds.last, ["sequence", "message_id", "data"]
        )
        for row in batch.to_pylist()
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the official client leaves the channels of a lost broker open
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_broker_killed_while_publishers_work_loses_no_answered_publish(tmp_path: Path, seed: int) -> None:
    airlines = many_flights(seed)
    sent = {each.row: msgspec.json.encode(each) for flights in airlines.values() for each in flights}
    crash_after = random.Random(seed).randrange(FLIGHTS // 10, FLIGHTS * 2 // 3)
    with BrokerProcess(tmp_path / "broker", tmp_path / "broker.log") as broker, topics.emulator_host(broker.endpoint):
        topics.create()
        answers = publish_through_a_crash(broker, airlines, crash_after)
        delivered = dict(topics.drain(NAMES.forwarder))
        log = log_of(broker)
    assert {each.row for each in answers} == sent.keys()
    for each in answers:
        assert delivered.get(each.message_id) == sent[each.row]
    assert log == delivered
    assert set(log.values()) == set(sent.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_broker_killed_twice_keeps_each_aircraft_s_flights_in_order(tmp_path: Path) -> None:
    airlines = many_flights(4)
    with BrokerProcess(tmp_path / "broker", tmp_path / "broker.log") as broker, topics.emulator_host(broker.endpoint):
        topics.create()
        publish_through_a_crash(broker, airlines, FLIGHTS // 3)
        broker.kill()
        broker.start()
        log = log_of(broker)
    last: dict[tuple[str, str], int] = {}
    for message_id in sorted(log, key=int):
        each = msgspec.json.decode(log[message_id], type=Flight)
        if each.tailnum is None:
            continue
        # a call that was carried out and repeated stands in the log twice; first appearances are in order
        due = last.get((each.carrier, each.tailnum), 0) + 1
        assert each.leg <= due
        last[each.carrier, each.tailnum] = max(each.leg, due - 1)
