"""A broker in another process has the operations, results and errors of one in this process."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from heliograph.broker.broker import LocalBroker
from heliograph.broker.protocol import Broker
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft, Extras
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings, TopicSettings
from heliograph.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidAckId,
    InvalidArgument,
    MessageNotFound,
    QueueNotFound,
    SubscriptionNotFound,
    TopicNotFound,
    Unavailable,
)
from heliograph.remote.broker import RemoteBroker, remote_broker
from heliograph.remote.link import Link
from heliograph.store.memory import MemoryStore
from heliograph.testing.faulty_store import FaultyStore
from tests.remote.conftest import Pair
from tests.server.clients import wait_until
from tests.server.conftest import serving

SETTINGS = SubscriptionSettings(
    ack_deadline_ns=20 * SECOND_NS,
    retry_policy=RetryPolicy(SECOND_NS, 2 * SECOND_NS),
    dead_letter_policy=DeadLetterPolicy(None, 2),
    prioritised=True,
    labels={"a": "ü"},
    resource=b"\xff\x00",
)


def topic_with_subscription(pair: Pair, settings: SubscriptionSettings = SETTINGS) -> None:
    pair.remote.create_topic("t", TopicSettings(labels={"x": "y"})).result()
    pair.remote.create_subscription("s", "t", settings).result()


def test_it_has_every_operation_with_the_same_parameters() -> None:
    for name, method in vars(Broker).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            assert callable(getattr(RemoteBroker, name)), name


def test_what_is_made_here_is_there_and_questions_have_the_same_answers(pair: Pair) -> None:
    topic_with_subscription(pair)
    assert pair.remote.get_topic("t") == pair.local.get_topic("t")
    assert pair.remote.get_subscription("s") == pair.local.get_subscription("s")
    assert pair.remote.get_subscription("s").settings == SETTINGS
    assert pair.remote.list_topics() == pair.local.list_topics()
    assert pair.remote.list_subscriptions("t") == pair.local.list_subscriptions("t")
    assert pair.remote.health() == pair.local.health()


def test_a_message_goes_its_whole_way(pair: Pair) -> None:
    topic_with_subscription(pair)
    drafts = [
        Draft(b"\x00\xff", {"k": "ü"}, extras=Extras(priority=2)),
        Draft(b"high", extras=Extras(priority=9, content_type="x")),
    ]
    ids = pair.remote.publish("t", drafts).result()
    assert pair.remote.position("s", 0) == 2
    assert [message.data for message in pair.remote.peek("s", 5)] == [b"high", b"\x00\xff"]
    high, low = pair.remote.pull("s", 5, consumer="c", ack_deadline_ns=30 * SECOND_NS).result()
    assert (high.message_id, low.message_id) == (ids[1], ids[0])
    assert (low.message.attributes, low.message.extras) == ({"k": "ü"}, Extras(priority=2))
    assert pair.remote.outstanding("s", "c") == 2
    assert pair.remote.current_ack_id("s", ids[0]) == low.ack_id
    assert pair.remote.subscription_of(low.ack_id) == "s"
    assert pair.remote.acknowledge("s", [high.ack_id, high.ack_id]).result() == [high.ack_id]
    assert pair.remote.nack("s", [low.ack_id]).result() == ([], [])
    statistics = pair.remote.statistics("s")
    assert statistics == pair.local.statistics("s")
    assert (statistics.delayed, statistics.totals.nacked, statistics.totals.acknowledged) == (1, 1, 1)


def test_dead_letters_are_given_with_their_messages(pair: Pair) -> None:
    topic_with_subscription(pair)
    (message_id,) = pair.remote.publish("t", [Draft(b"poison")]).result()
    (delivery,) = pair.remote.pull("s", 1).result()
    pair.remote.reject("s", [delivery.ack_id]).result()
    assert pair.remote.dead_letters("s") == pair.local.dead_letters("s")
    assert pair.remote.retry_dead_letters("s", [message_id]).result() == 1
    assert pair.remote.purge("s").result() == (1, 0)


def test_errors_are_those_of_the_operation_with_what_they_know(pair: Pair) -> None:
    topic_with_subscription(pair)
    with pytest.raises(TopicNotFound) as missing:
        pair.remote.get_topic("missing")
    assert (missing.value.name, missing.value.message) == ("missing", "Topic not found: missing")
    with pytest.raises(AlreadyExists):
        pair.remote.create_topic("t")
    with pytest.raises(QueueNotFound):
        pair.remote.delete_queue("missing")
    with pytest.raises(InvalidAckId) as invalid:
        pair.remote.acknowledge("s", ["garbage"])
    assert invalid.value.ack_ids == ["garbage"]
    with pytest.raises(MessageNotFound):
        pair.remote.current_ack_id("s", "7")
    with pytest.raises(SubscriptionNotFound):
        pair.remote.watch("missing", lambda: None)
    with pytest.raises(TypeError):
        pair.remote.get_topic()  # type: ignore[call-arg]  # on purpose


def test_a_watch_tells_of_messages_until_it_is_closed(pair: Pair) -> None:
    topic_with_subscription(pair)
    told = threading.Event()
    watch = pair.remote.watch("s", told.set)
    pair.local.publish("t", [Draft(b"1")])
    assert told.wait(30)
    watch.close()
    pair.remote.get_topic("t")  # the server has read that it is closed
    told.clear()
    pair.local.publish("t", [Draft(b"2")])
    pair.remote.get_topic("t")
    assert not told.is_set()


def test_acknowledge_later_happens_before_what_follows(pair: Pair) -> None:
    topic_with_subscription(pair)
    pair.remote.publish("t", [Draft(b"1"), Draft(b"2")]).result()
    for delivery in pair.remote.pull("s", 2).result():
        pair.remote.acknowledge_later("s", delivery.ack_id)
    assert pair.remote.statistics("s").totals.acknowledged == 2


def test_a_log_is_read_in_parts(pair: Pair) -> None:
    topic_with_subscription(pair)
    pair.local.publish("t", [Draft(str(number).encode()) for number in range(2_500)]).result()
    first, last = pair.remote.log_bounds("t")
    read = [message.data for part in pair.remote.read_log("t", first, last) for message in part]
    assert read == [str(number).encode() for number in range(2_500)]


def test_the_brokers_time_is_known_without_asking_each_time(pair: Pair) -> None:
    assert abs(pair.remote.now_ns() - pair.local.now_ns()) < SECOND_NS
    pair.server.stop()
    assert abs(pair.remote.now_ns() - pair.local.now_ns()) < SECOND_NS


def test_leases_go_back_when_the_connection_ends(pair: Pair) -> None:
    topic_with_subscription(pair)
    pair.remote.publish("t", [Draft(b"1")]).result()
    pair.remote.pull("s", 1).result()
    pair.remote.close()
    wait_until(lambda: pair.local.statistics("s").outstanding == 0)
    assert pair.local.statistics("s").ready == 1
    assert pair.local.statistics("s").totals.expired == 0


def test_what_a_durable_store_has_not_committed_is_not_answered_yet(tmp_path: Path) -> None:
    local = LocalBroker.open(tmp_path)
    with serving(local) as server:
        remote = remote_broker(f"http://127.0.0.1:{server.port}")
        remote.create_topic("t").result()
        reply = remote.publish("t", [Draft(b"1")])
        assert reply.provisional == reply.result(30)
        assert reply.done
        remote.close()


def test_a_commit_that_fails_fails_the_reply_and_not_the_call() -> None:
    store = FaultyStore(MemoryStore())
    with serving(LocalBroker(store)) as server:
        remote = remote_broker(f"http://127.0.0.1:{server.port}")
        remote.create_topic("t").result()
        store.fail_next()
        reply = remote.publish("t", [Draft(b"1")])
        with pytest.raises(Unavailable, match=r"^The store cannot commit: "):
            reply.result()
        store.retry()
        store.hold()
        reply = remote.publish("t", [Draft(b"2")])
        assert not reply.done
        store.fail_next()
        store.release()
        with pytest.raises(Unavailable, match=r"^The store cannot commit: .*No space left"):
            reply.result()
        store.retry()
        remote.close()


def test_calls_from_many_threads_share_a_connection(pair: Pair) -> None:
    topic_with_subscription(pair)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                (message_id,) = pair.remote.publish("t", [Draft(str(number).encode())]).result()
                assert message_id
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert pair.local.statistics("s").ready == 160


def test_where_nobody_answers_the_call_says_so_and_may_be_repeated() -> None:
    remote = remote_broker("http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"No broker answers at http://127\.0\.0\.1:9"):
        remote.list_topics()
    remote.close()
    with pytest.raises(Unavailable, match="closed"):
        remote.list_topics()


def test_a_connection_that_is_lost_is_made_anew_and_watches_go_on(tmp_path: Path) -> None:
    told = threading.Event()
    with serving(LocalBroker.open(tmp_path)) as server:
        port = server.port
        remote = remote_broker(f"http://127.0.0.1:{port}")
        remote.create_topic("t").result()
        remote.create_subscription("s", "t").result()
        remote.watch("s", told.set)
    told.clear()
    with pytest.raises(Unavailable):
        remote.list_topics()
    with serving(LocalBroker.open(tmp_path), port=port):
        assert told.wait(30)
        told.clear()
        remote.publish("t", [Draft(b"1")]).result()
        assert told.wait(30)
        assert len(remote.pull("s", 5).result()) == 1
        remote.close()


@pytest.mark.parametrize("url", ["", "ftp://host", "http://", 7])
def test_what_is_no_url_of_a_server_is_refused(url: object) -> None:
    with pytest.raises(InvalidArgument):
        remote_broker(url)  # type: ignore[arg-type]  # on purpose


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "websockets.sync.client", None)
    with pytest.raises(FailedPrecondition, match=r"heliograph\[client\]"):
        remote_broker("http://localhost:8085")


def test_messages_that_come_when_nobody_waits_for_the_answer_any_more_go_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_with_subscription(pair)
    pair.local.publish("t", [Draft(b"1")]).result()
    pull, go_on = pair.local.pull, threading.Event()

    def pull_late(*args: Any, **kwargs: Any) -> Any:
        go_on.wait(30)
        return pull(*args, **kwargs)

    monkeypatch.setattr(pair.local, "pull", pull_late)
    impatient = remote_broker(f"http://127.0.0.1:{pair.server.port}", timeout_seconds=0.2)
    impatient.list_topics()
    with pytest.raises(Unavailable, match="did not answer"):
        impatient.pull("s", 1)
    go_on.set()
    wait_until(lambda: pair.local.statistics("s").totals.delivered == 1)
    wait_until(lambda: pair.local.statistics("s").outstanding == 0)
    assert pair.local.statistics("s").ready == 1
    assert pair.local.statistics("s").totals.expired == 0
    impatient.close()


def test_a_connection_that_is_lost_while_it_begins_is_told_as_one_that_is_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{pair.server.port}"

    def fail(*_args: Any) -> None:
        raise ConnectionResetError("the connection was reset")

    with monkeypatch.context() as broken:
        broken.setattr(ClientConnection, "send", fail)
        link = Link(url, 5, lambda _number: None, lambda: [b"what is watched"], lambda *_late: None)
        with pytest.raises(Unavailable, match="was lost: the connection was reset"):
            link.call("now_ns", {})
        link.close()
