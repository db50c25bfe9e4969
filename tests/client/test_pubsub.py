"""PubSub and Topic: topics and subscriptions, publishing in batches, ordering keys after failures, closing."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from heliograph import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    LocalBroker,
    Message,
    MessageQueue,
    MessageTooLarge,
    PublishOptions,
    PubSub,
    SimulatedClock,
    StoreRefused,
    SubscriptionNotFound,
    SubscriptionOptions,
    TopicNotFound,
    Unavailable,
)
from heliograph.engine.limits import MIB
from tests.client.conftest import Bench, Inbox, idle, until

# ── what it works on ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_plain_pubsub_works_on_the_one_queue_of_the_process() -> None:
    first, second = PubSub(), PubSub(project_id="other")
    await first.create_topic("t")
    assert await second.topic("t").exists()
    assert MessageQueue.get_instance().topic_exists("t")


async def test_a_pubsub_with_a_broker_or_a_clock_has_its_own() -> None:
    await PubSub().create_topic("t")
    broker = LocalBroker()
    for pubsub in (PubSub(broker=broker), PubSub(clock=SimulatedClock())):
        assert await pubsub.get_topics() == []
        await pubsub.close()
    broker.create_topic("still open")
    broker.close()


async def test_options_may_be_a_mapping_in_the_specs_spelling(tmp_path: Path) -> None:
    async with PubSub({"projectId": "p", "dataDir": tmp_path}) as pubsub:
        assert pubsub.project_id == "p"
    assert PubSub(projectId="q").project_id == "q"
    assert PubSub().project_id == "heliograph"


BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "a project that is a number": {"project_id": 5},
    "a project that is bytes": {"project_id": b"p"},
    "an option that does not exist": {"nonsense": 1},
    "a directory that is a number": {"data_dir": 5},
    "a broker that is a name": {"broker": "x"},
    "a broker that is a class": {"broker": LocalBroker},
    "a broker and a clock to make one of": {"broker": LocalBroker(), "clock": SimulatedClock()},
}


@pytest.mark.parametrize("options", BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_options_that_are_not_possible_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        PubSub(**options)


def test_nothing_needs_an_event_loop_to_be_made() -> None:
    pubsub = PubSub()
    topic = pubsub.topic("t")
    topic.set_options(max_messages=5)
    topic.subscription("s", flow_control={"max_messages": 5}).on("message", print)
    asyncio.run(topic.create())
    assert asyncio.run(topic.exists())
    asyncio.run(pubsub.close())


async def test_with_a_data_dir_everything_survives(tmp_path: Path) -> None:
    async with PubSub(data_dir=tmp_path) as pubsub:
        topic = await pubsub.create_topic("t")
        await topic.create_subscription("s", enable_message_ordering=True)
        message_id = await topic.publish_message(data=b"kept", attributes={"k": "v"}, ordering_key="o")
        topic.publish_nowait(b"published and not waited for")
    async with PubSub(data_dir=str(tmp_path)) as pubsub:
        subscription = pubsub.subscription("s")
        first, second = await subscription.pull()
        assert (first.id, first.data, first.attributes, first.ordering_key) == (message_id, b"kept", {"k": "v"}, "o")
        assert second.data == b"published and not waited for"
        options = pubsub.queue.get_all_subscriptions()[0].options
        assert options.enable_message_ordering
        first.ack()
    async with PubSub(data_dir=tmp_path) as pubsub:
        inbox = Inbox(Message.ack)
        received = asyncio.Event()
        pubsub.subscription("s").on("message", inbox).on("message", lambda _: received.set()).open()
        pubsub.queue.broker.release("s", [second.ack_id])
        await asyncio.wait_for(received.wait(), 30)
        assert [message.id for message in inbox.messages] == [second.id]


async def test_a_durable_stream_delivers_without_blocking_the_loop(tmp_path: Path) -> None:
    async with PubSub(data_dir=tmp_path) as pubsub:
        topic = await pubsub.create_topic("t")
        subscription = await topic.create_subscription("s")
        inbox, everything = Inbox(Message.ack), asyncio.Event()
        subscription.on("message", inbox).on("message", lambda _: len(inbox) == 300 and everything.set()).open()
        await asyncio.gather(*[topic.publish_message(str(number).encode()) for number in range(300)])
        await asyncio.wait_for(everything.wait(), 30)
        assert sorted(inbox.data, key=int) == [str(number) for number in range(300)]


def test_a_data_dir_that_is_in_use_is_refused(tmp_path: Path) -> None:
    pubsub = PubSub(data_dir=tmp_path)
    with pytest.raises(StoreRefused):
        PubSub(data_dir=tmp_path)
    asyncio.run(pubsub.close())


# ── topics and subscriptions ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_topic_is_created_found_listed_and_deleted() -> None:
    pubsub = PubSub()
    topic = pubsub.topic("b")
    assert not await topic.exists()
    with pytest.raises(TopicNotFound, match="Topic not found: b"):
        await topic.get()
    assert await topic.create() is topic
    assert await topic.get() is topic
    await pubsub.create_topic("a")
    assert [found.name for found in await pubsub.get_topics()] == ["a", "b"]
    with pytest.raises(AlreadyExists, match="Topic already exists: b"):
        await topic.create()
    await topic.delete()
    with pytest.raises(TopicNotFound):
        await topic.delete()
    assert not await topic.exists()


async def test_a_subscription_is_created_found_listed_and_deleted() -> None:
    pubsub = PubSub()
    topic = await pubsub.create_topic("t")
    subscription = topic.subscription("b")
    assert not await subscription.exists()
    with pytest.raises(SubscriptionNotFound, match="Subscription not found: b"):
        await subscription.get()
    assert await subscription.create() is subscription
    assert await subscription.get() is subscription
    await pubsub.create_subscription(topic, "a")
    await pubsub.create_topic("other")
    await pubsub.create_subscription("other", "c")
    assert [found.name for found in await pubsub.get_subscriptions()] == ["a", "b", "c"]
    assert [found.name for found in await topic.get_subscriptions()] == ["a", "b"]
    with pytest.raises(AlreadyExists):
        await subscription.create()
    await subscription.delete()
    with pytest.raises(SubscriptionNotFound):
        await subscription.delete()


async def test_creating_a_subscription_needs_a_topic_from_somewhere() -> None:
    pubsub = PubSub()
    topic = await pubsub.create_topic("t")
    with pytest.raises(InvalidArgument, match="needs a topic") as failure:
        await pubsub.subscription("s").create()
    assert failure.value.code == 3
    topic.subscription("s")
    await pubsub.subscription("s").create()
    await pubsub.subscription("r", topic="t").create()
    await pubsub.subscription("q", topic=topic).create()
    with pytest.raises(TopicNotFound):
        await pubsub.subscription("p", topic="nope").create()
    assert [found.name for found in await topic.get_subscriptions()] == ["q", "r", "s"]


async def test_a_deleted_subscription_may_be_created_for_another_topic() -> None:
    pubsub = PubSub()
    for name in ("a", "b"):
        topic = await pubsub.create_topic(name)
        subscription = await topic.create_subscription("s")
        assert [found.name for found in await topic.get_subscriptions()] == ["s"]
        await subscription.delete()
    with pytest.raises(InvalidArgument):
        await pubsub.subscription("s").create()


async def test_subscription_options_come_as_objects_mappings_and_keywords_in_either_spelling() -> None:
    pubsub = PubSub()
    wanted = SubscriptionOptions(ack_deadline=5, message_ordering=True, flow_control={"max_messages": 3})
    forms: list[tuple[Any, dict[str, Any]]] = [
        (wanted, {}),
        ({"ackDeadline": 5, "messageOrdering": True, "flowControl": {"maxMessages": 3}}, {}),
        ({"ack_deadline": 5, "enable_message_ordering": True, "flow_control": {"max_messages": 3}}, {}),
        (None, {"ackDeadline": 5, "enableMessageOrdering": True, "flowControl": {"max_messages": 3}}),
        ({"ackDeadline": 5}, {"message_ordering": True, "flow_control": wanted.flow_control}),
        (wanted, {"ack_deadline": 5}),
    ]
    for options, more in forms:
        assert pubsub.subscription("s", options, **more).options == wanted


@pytest.mark.parametrize("name", ["", None, 5, b"name", "\ud800"])
async def test_a_name_is_a_string_with_something_in_it(name: str) -> None:
    pubsub = PubSub()
    topic = await pubsub.create_topic("t")
    for make in (
        lambda: pubsub.topic(name),
        lambda: pubsub.subscription(name),
        lambda: topic.subscription(name),
        lambda: pubsub.subscription("s", topic=name) if name is not None else pubsub.topic(name),
    ):
        with pytest.raises(InvalidArgument) as failure:
            make()
        assert failure.value.code == 3


# ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def data_of(bench: Bench) -> list[bytes]:
    return [message.data for message in await bench.pubsub.subscription("my-sub").pull()]


async def test_a_message_may_be_given_in_many_ways() -> None:
    bench = Bench()
    subscription = await bench.subscription()
    publish = bench.topic.publish_message
    await publish(b"1")
    await publish(data=bytearray(b"1"))
    await publish({"data": memoryview(b"1")})
    await publish({"data": b"1"}, attributes={"k": "v"}, orderingKey="o")
    await publish({"data": b"1", "attributes": {"k": "v"}, "ordering_key": "o"})
    await publish(b"1", attributes={"k": "v"}, ordering_key="o")
    await publish(attributes={"k": "v"})
    messages = await subscription.pull()
    assert [message.data for message in messages] == [b"1"] * 6 + [b""]
    assert [message.attributes for message in messages] == [{}] * 3 + [{"k": "v"}] * 4
    assert [message.ordering_key for message in messages] == [None] * 3 + ["o"] * 3 + [None]


async def test_json_is_published_in_utf_8() -> None:
    bench = Bench()
    subscription = await bench.subscription()
    value = {"name": "Gruß", "list": [1, 2.5, None, True]}
    await bench.topic.publish_json(value, {"k": "v"}, ordering_key="o")
    await bench.topic.publish_json(None)
    first, second = await subscription.pull()
    assert json.loads(first.data) == value
    assert "Gruß".encode() in first.data
    assert (first.attributes, first.ordering_key) == ({"k": "v"}, "o")
    assert second.data == b"null"


LOOP: list[Any] = []
LOOP.append(LOOP)


NO_JSON = {
    "an object": object(),
    "a set": {1, 2},
    "not a number": float("nan"),
    "bytes": b"bytes",
    "no text": "\ud800",
    "a key that is a tuple": {("a", "b"): 1},
    "itself": LOOP,
}


@pytest.mark.parametrize("value", NO_JSON.values(), ids=NO_JSON)
async def test_what_json_has_no_form_for_is_refused(value: object) -> None:
    bench = Bench()
    await bench.subscription()
    with pytest.raises(InvalidArgument) as failure:
        await bench.topic.publish_json(value)
    assert failure.value.code == 3
    assert await data_of(bench) == []


BAD_MESSAGES: list[dict[str, Any]] = [
    {},
    {"message": "text"},
    {"message": 5},
    {"message": ["list"]},
    {"message": {}},
    {"message": {"data": "text"}},
    {"message": b"once", "data": b"twice"},
    {"message": {"data": b"once"}, "data": b"twice"},
    {"message": {"dta": b""}},
    {"data": "text"},
    {"data": 5},
    {"data": b"", "attributes": {"k": 5}},
    {"data": b"", "attributes": {5: "v"}},
    {"data": b"", "attributes": {"": "v"}},
    {"data": b"", "attributes": {"goog": "v"}},
    {"data": b"", "attributes": "text"},
    {"data": b"", "ordering_key": 5},
    {"data": b"", "ordering_key": "k" * 1025},
    {"data": b"", "orderingKeys": "k"},
    {"data": bytes(10 * MIB), "attributes": {"k": "v"}},
]


@pytest.mark.parametrize("message", BAD_MESSAGES, ids=lambda message: str(message)[:60])
async def test_a_bad_message_is_refused_alone_and_its_key_goes_on(message: dict[str, Any]) -> None:
    bench = Bench()
    await bench.subscription()
    good = bench.topic.publish_nowait(b"good", ordering_key="o")
    for publish in (bench.topic.publish_nowait, bench.topic.publish_message):
        with pytest.raises(InvalidArgument) as failure:
            await publish(**message)
        assert failure.value.code == 3
    await good
    await bench.topic.publish_message(b"good too", ordering_key="o")
    assert await data_of(bench) == [b"good", b"good too"]


async def test_ten_megabytes_and_a_byte_are_too_much() -> None:
    with pytest.raises(MessageTooLarge, match=r"^Message size exceeds maximum of 10MB$"):
        await Bench().topic.publish_message(bytes(10 * MIB + 1))


async def test_publishing_to_a_topic_that_is_not_there_fails_with_code_5() -> None:
    with pytest.raises(TopicNotFound, match="Topic not found: my-topic") as failure:
        await Bench().topic.publish_message(b"x")
    assert failure.value.code == 5


async def test_a_later_change_of_what_was_passed_changes_nothing() -> None:
    bench = Bench()
    subscription = await bench.subscription()
    data, attributes = bytearray(b"data"), {"k": "v"}
    future = bench.topic.publish_nowait(data, attributes=attributes)  # type: ignore[arg-type]  # as a caller may
    data[0], attributes["k"] = 0, "changed"
    await future
    (message,) = await subscription.pull()
    assert (message.data, message.attributes) == (b"data", {"k": "v"})


def _batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that reach the broker from now on."""
    sizes: list[int] = []
    broker: Any = bench.pubsub.queue.broker
    original = broker.publish

    def publish(topic: str, drafts: list[Any]) -> Any:
        sizes.append(len(drafts))
        return original(topic, drafts)

    monkeypatch.setattr(broker, "publish", publish)
    return sizes


async def test_what_is_published_at_the_same_time_shares_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.subscription()
    sizes = _batches(bench, monkeypatch)
    ids = await asyncio.gather(*[bench.topic.publish_message(str(number).encode()) for number in range(50)])
    assert sizes == [50]
    assert ids == sorted(ids)
    await bench.publish("alone")
    assert sizes == [50, 1]


async def test_a_full_batch_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.subscription()
    bench.topic.set_options({"batching": {"maxMessages": 3, "maxMilliseconds": 60_000}})
    sizes = _batches(bench, monkeypatch)
    futures = [bench.topic.publish_nowait(b"x") for _ in range(7)]
    assert sizes == [3, 3]
    assert [future.done() for future in futures] == [True] * 6 + [False]
    await bench.topic.flush()
    assert sizes == [3, 3, 1]
    assert futures[6].done()


async def test_a_batch_goes_before_it_exceeds_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.subscription()
    bench.topic.set_options(max_bytes=10, max_milliseconds=60_000)
    sizes = _batches(bench, monkeypatch)
    for size in (4, 4, 4, 100):
        bench.topic.publish_nowait(bytes(size))
    assert sizes == [2, 1, 1]


async def test_a_batch_goes_when_its_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.subscription()
    bench.topic.set_options(max_milliseconds=20)
    sizes = _batches(bench, monkeypatch)
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    futures = [bench.topic.publish_nowait(b"x") for _ in range(2)]
    await idle()
    now += 0.0199
    await idle()
    assert sizes == []
    now += 0.0002
    await asyncio.gather(*futures)
    assert sizes == [2]


@pytest.mark.parametrize(
    "options",
    [{"max_messages": 0}, {"maxMessages": 1.5}, {"max_bytes": -1}, {"max_milliseconds": -1}, {"maxMilliseconds": 10**9},
     {"batching": 5}, {"nonsense": 1}],
    ids=str,
)  # fmt: skip
async def test_a_bad_publish_option_is_refused_and_changes_nothing(options: dict[str, Any]) -> None:
    bench = Bench()
    bench.topic.set_options(max_messages=7)
    with pytest.raises(InvalidArgument):
        bench.topic.set_options(options)
    assert bench.pubsub.publisher_of("my-topic").options == PublishOptions(max_messages=7)


async def test_all_objects_of_one_topic_share_its_publisher() -> None:
    bench = Bench()
    bench.topic.set_options(max_messages=7)
    bench.pubsub.topic("my-topic").set_options(max_milliseconds=5)
    assert bench.pubsub.publisher_of("my-topic").options == PublishOptions(max_messages=7, max_milliseconds=5)


async def test_after_a_failure_a_key_is_paused_until_it_is_resumed_and_others_go_on() -> None:
    bench = Bench()
    subscription = await bench.subscription(message_ordering=True)
    await bench.topic.delete()
    with pytest.raises(TopicNotFound):
        await bench.publish("lost", key="a")
    await subscription.delete()
    subscription = await bench.subscription(message_ordering=True)
    with pytest.raises(FailedPrecondition, match="paused for ordering key 'a'"):
        await bench.publish("must not overtake", key="a")
    await bench.publish("b goes on", key="b")
    await bench.publish("and so does what has no key")
    bench.pubsub.topic("my-topic").resume_publishing("a")
    await bench.publish("a goes on", key="a")
    assert [message.data for message in await subscription.pull()] == [
        b"b goes on",
        b"and so does what has no key",
        b"a goes on",
    ]


async def test_what_waits_behind_a_failed_message_of_its_key_fails_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.subscription()
    broker: Any = bench.pubsub.queue.broker
    original, failures = broker.publish, [Unavailable("disk full")]

    def publish(topic: str, drafts: list[Any]) -> Any:
        if failures:
            raise failures.pop()
        return original(topic, drafts)

    monkeypatch.setattr(broker, "publish", publish)
    bench.topic.set_options(max_messages=2, max_milliseconds=60_000)
    behind = bench.topic.publish_nowait(b"before", ordering_key="b")
    first = bench.topic.publish_nowait(b"first", ordering_key="a")  # fills the batch, which fails
    with pytest.raises(Unavailable):
        await first
    with pytest.raises(Unavailable):
        await behind
    with pytest.raises(FailedPrecondition):
        bench.topic.publish_nowait(b"second", ordering_key="a")
    await asyncio.gather(bench.topic.publish_message(b"free"), bench.topic.publish_message(b"free"))
    bench.topic.resume_publishing("a")
    await asyncio.gather(bench.topic.publish_message(b"again", ordering_key="a"), bench.topic.flush())
    assert await data_of(bench) == [b"free", b"free", b"again"]


async def test_a_message_in_a_batch_does_not_overtake_one_that_failed_meanwhile() -> None:
    bench = Bench()
    await bench.subscription()
    publisher = bench.pubsub.publisher_of("my-topic")
    bench.topic.set_options(max_milliseconds=60_000)
    waiting = bench.topic.publish_nowait(b"second", ordering_key="a")
    free = bench.topic.publish_nowait(b"free")
    publisher._paused.add("a")  # as the failure of a batch before it does
    await bench.topic.flush()
    with pytest.raises(FailedPrecondition):
        await waiting
    await free
    assert await data_of(bench) == [b"free"]


@pytest.mark.parametrize("key", ["", None, 5])
def test_only_an_ordering_key_can_be_resumed(key: str) -> None:
    with pytest.raises(InvalidArgument):
        Bench().topic.resume_publishing(key)


def test_publishing_needs_an_event_loop() -> None:
    with pytest.raises(FailedPrecondition):
        PubSub().topic("t").publish_nowait(b"x")


async def test_a_publisher_whose_waiter_gave_up_goes_on() -> None:
    bench = Bench()
    await bench.subscription()
    task = asyncio.create_task(bench.topic.publish_message(b"x"))
    await asyncio.sleep(0)
    task.cancel()
    await bench.publish("y")
    assert await data_of(bench) == [b"x", b"y"]


def test_what_was_published_in_a_loop_that_is_gone_is_published_in_the_next() -> None:
    pubsub = PubSub()

    async def begin() -> None:
        topic = await pubsub.create_topic("t")
        await topic.create_subscription("s")
        topic.set_options(max_milliseconds=60_000)
        topic.publish_nowait(b"first")

    async def end() -> list[bytes]:
        await pubsub.topic("t").flush()
        return [message.data for message in await pubsub.subscription("s").pull()]

    asyncio.run(begin())
    assert asyncio.run(end()) == [b"first"]


# ── closing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_closing_publishes_what_waits_and_stops_what_streams() -> None:
    bench, events = Bench(), []
    subscription = await bench.subscription()

    async def process(message: Message) -> None:
        await idle()
        bench.topic.publish_nowait(b"published by the callback") if message.data == b"first" else None
        message.ack()
        events.append(message.data)

    subscription.on("message", process).on("close", lambda: events.append("close")).open()
    bench.topic.set_options(max_milliseconds=60_000)
    bench.topic.publish_nowait(b"first")
    await bench.topic.flush()
    await until(lambda: len(subscription.outstanding) == 1)
    waiting = bench.topic.publish_nowait(b"waiting")
    await bench.pubsub.close()
    assert waiting.done()
    assert (events[0], events[-1]) == (b"first", "close")
    assert not subscription.is_open
    assert subscription.queue.statistics("my-sub").totals.published == 3


async def test_closing_loses_nothing(tmp_path: Path) -> None:
    async with PubSub(data_dir=tmp_path) as pubsub:
        topics = [await pubsub.create_topic(f"t{number}") for number in range(5)]
        for topic in topics:
            await topic.create_subscription(f"s-{topic.name}")
            topic.set_options(max_milliseconds=60_000, max_messages=7)
            for number in range(20):
                topic.publish_nowait(str(number).encode())
    async with PubSub(data_dir=tmp_path) as pubsub:
        for topic in topics:
            messages = await pubsub.subscription(f"s-{topic.name}").pull()
            assert [message.data for message in messages] == [str(number).encode() for number in range(20)]


async def test_a_closed_pubsub_refuses_everything_with_code_9() -> None:
    pubsub = PubSub()
    topic = await pubsub.create_topic("t")
    subscription = await topic.create_subscription("s")
    await pubsub.close()
    await pubsub.close()
    assert pubsub.is_closed
    calls: list[Any] = [
        pubsub.get_topics, pubsub.get_subscriptions, topic.create, topic.delete, topic.exists, topic.get, topic.flush,
        topic.get_subscriptions, lambda: topic.publish_message(b"x"), lambda: topic.publish_json(1),
        subscription.create, subscription.delete, subscription.exists, subscription.get, subscription.pull,
        lambda: pubsub.create_topic("x"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(FailedPrecondition, match="The PubSub is closed") as failure:
            await call()
        assert failure.value.code == 9
    with pytest.raises(FailedPrecondition):
        subscription.open()
    assert MessageQueue.get_instance().subscription_exists("s")


async def test_closing_one_pubsub_leaves_the_others() -> None:
    first, second = PubSub(), PubSub()
    topic = await first.create_topic("t")
    subscription = await second.topic("t").create_subscription("s")
    inbox = Inbox(Message.ack)
    subscription.on("message", inbox).open()
    await topic.publish_message(b"a")
    await first.close()
    await second.topic("t").publish_message(b"b")
    await until(lambda: inbox.data == ["a", "b"])


async def test_a_body_that_fails_still_closes() -> None:
    pubsub = PubSub()
    with pytest.raises(ZeroDivisionError):
        async with pubsub:
            1 / 0  # noqa: B018
    assert pubsub.is_closed


# ── figures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_topic_with_a_subscription_costs_under_two_kilobytes() -> None:
    pubsub = PubSub()
    await (await pubsub.create_topic("warm")).create_subscription("up")
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = []
    for number in range(500):
        topic = await pubsub.create_topic(f"topic-{number}")
        kept.append((topic, await topic.create_subscription(f"subscription-{number}")))
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used / len(kept) < 2_000


def test_threads_with_loops_of_their_own_may_use_pubsubs_of_their_own() -> None:
    received: list[int] = []

    async def work(number: int) -> None:
        async with PubSub() as pubsub:
            topic = await pubsub.create_topic(f"t{number}")
            subscription = await topic.create_subscription(f"s{number}")
            inbox = Inbox(Message.ack)
            subscription.on("message", inbox).open()
            for _ in range(100):
                await topic.publish_message(b"x")
            await until(lambda: len(inbox) == 100)
            received.append(len(inbox))

    threads = [threading.Thread(target=lambda number=number: asyncio.run(work(number))) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received == [100] * 4
