"""What a stream counts: deliveries that are held, and bytes that are not known to have been read."""

from __future__ import annotations

from heliograph.engine.message import Delivery, Message
from heliograph.server.grpc.connection import Connection, Connections
from heliograph.server.pubsub.outstanding import UNREAD_BYTES_MAX, Held, Unread


def delivery(number: int, deadline_ns: int = 100) -> Delivery:
    return Delivery(Message(number, 1, b"x"), str(number), f"ack-{number}", 1, deadline_ns)


def held(*deliveries: Delivery) -> Held:
    counted = Held()
    for one in deliveries:
        counted.add([one], [10])
    return counted


def test_what_is_settled_is_not_held() -> None:
    counted = held(delivery(1), delivery(2))
    counted.drop(["ack-1"])
    assert (list(counted.deliveries), counted.bytes) == (["ack-2"], 10)


def test_ended_leases_are_dropped_when_they_have_ended() -> None:
    counted = held(delivery(1, 100), delivery(2, 200))
    assert counted.drop_ended(99) == []
    assert counted.drop_ended(100) == ["ack-1"]
    assert (counted.bytes, counted.earliest_ns) == (10, 200)


def test_an_extended_lease_ends_at_its_new_deadline() -> None:
    counted = held(delivery(1, 100))
    counted.extend(["ack-1"], 300)
    assert counted.drop_ended(299) == []
    assert counted.drop_ended(300) == ["ack-1"]


def test_what_was_given_back_and_handed_again_is_known_until_it_is_confirmed() -> None:
    counted = held(delivery(1))
    counted.give_back("ack-1")
    again = Delivery(Message(1, 1, b"x"), "1", "ack-1-again", 2, 100)
    counted.add([again], [10])
    assert list(counted.handed_back) == ["ack-1-again"]
    counted.extend(["ack-1-again"], 200)
    assert list(counted.handed_back) == []


def unread(connection: Connection, woken: list[str], name: str = "a", *, is_steady: bool = False) -> Unread:
    return Unread(connection, lambda: woken.append(name), is_steady=is_steady)


def test_a_stream_waits_when_much_is_unread_and_goes_on_when_it_is_confirmed() -> None:
    woken: list[str] = []
    window = unread(Connection(), woken)
    window.add(["1"], [UNREAD_BYTES_MAX])
    assert not window.has_room(1)
    window.wait(True)
    window.confirm(["1"])
    assert window.has_room(1)
    assert woken == ["a"]


def test_the_streams_of_a_connection_share_its_room() -> None:
    connection, woken = Connection(), list[str]()
    one, two = unread(connection, woken, "one"), unread(connection, woken, "two")
    one.add(["1"], [UNREAD_BYTES_MAX])
    assert not two.has_room(1)
    two.wait(True)
    one.confirm(["1"])
    assert woken == ["two"]
    assert two.has_room(1)


def test_a_large_response_goes_when_nothing_else_is_unread() -> None:
    window = unread(Connection(), [])
    assert window.has_room(10 * UNREAD_BYTES_MAX)
    window.add(["1"], [1])
    assert not window.has_room(10 * UNREAD_BYTES_MAX)


def test_a_client_that_never_says_anything_is_soon_not_waited_for() -> None:
    window = unread(Connection(), [])
    for _ in range(Unread.STRIKES_MAX):
        window.add(["1"], [2 * UNREAD_BYTES_MAX])
        assert not window.has_room(1)
        window.forgive()
    window.add(["1"], [2 * UNREAD_BYTES_MAX])
    assert window.has_room(10 * UNREAD_BYTES_MAX)


def test_a_client_that_is_known_to_confirm_is_always_waited_for() -> None:
    window = unread(Connection(), [], is_steady=True)
    for _ in range(20):
        window.add(["1"], [2 * UNREAD_BYTES_MAX])
        assert not window.has_room(1)
        window.forgive()


def test_a_connection_is_known_while_it_has_streams() -> None:
    connections = Connections()
    scope = {"client": ("127.0.0.1", 1)}
    assert connections.get(scope) is None
    one, two = connections.join(scope), connections.join(scope)
    assert one is two is connections.get(scope)
    assert connections.get({"client": ("127.0.0.1", 2)}) is None
    connections.leave(scope, one)
    assert connections.get(scope) is one
    connections.leave(scope, two)
    assert connections.get(scope) is None
