"""What the Pub/Sub door keeps is the same after the broker was closed and opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heliograph.broker.broker import LocalBroker
from tests.server.clients import Rpc
from tests.server.conftest import serving

TOPIC, DEAD = "projects/p/topics/topic-1", "projects/p/topics/dead-letters"
SUBSCRIPTION, DETACHED = "projects/p/subscriptions/sub-1", "projects/p/subscriptions/detached"
SNAPSHOT = "projects/p/snapshots/snapshot-1"


def everything(rpc: Rpc) -> list[Any]:
    return [
        list(rpc("ListTopics", project="projects/p").topics),
        list(rpc("ListSubscriptions", project="projects/p").subscriptions),
        list(rpc("ListSnapshots", project="projects/p").snapshots),
        list(rpc("ListTopicSubscriptions", topic=TOPIC).subscriptions),
        [rpc("GetIamPolicy", resource=resource) for resource in (TOPIC, SUBSCRIPTION, SNAPSHOT)],
    ]


def make(rpc: Rpc) -> None:
    rpc.create_topic(TOPIC, labels={"a": "b"}, message_retention_duration={"seconds": 3600})
    rpc.create_topic(DEAD)
    rpc.create_subscription(SUBSCRIPTION, TOPIC, filter='attributes:"a"', enable_message_ordering=True)
    rpc.create_subscription(DETACHED, TOPIC, expiration_policy={})
    fields = {
        "retry_policy": {"minimum_backoff": {"seconds": 1}},
        "dead_letter_policy": {"dead_letter_topic": DEAD},
        "message_transforms": [{"ai_inference": {"endpoint": "e"}}],
    }
    rpc("UpdateSubscription", subscription={"name": SUBSCRIPTION} | fields, update_mask={"paths": list(fields)})
    rpc("UpdateTopic", topic={"name": TOPIC, "kms_key_name": "key"}, update_mask={"paths": ["kms_key_name"]})
    rpc("DetachSubscription", subscription=DETACHED)
    rpc("CreateSnapshot", name=SNAPSHOT, subscription=SUBSCRIPTION, labels={"c": "d"})
    for resource in (TOPIC, SUBSCRIPTION, SNAPSHOT):
        policy = {"bindings": [{"role": "roles/viewer", "members": ["allUsers"]}]}
        rpc("SetIamPolicy", resource=resource, policy=policy)


def test_every_resource_is_shown_after_a_restart_as_it_was_before(tmp_path: Path) -> None:
    with serving(LocalBroker.open(tmp_path)) as server, Rpc(server.port) as rpc:
        make(rpc)
        before = everything(rpc)
    with serving(LocalBroker.open(tmp_path)) as server, Rpc(server.port) as rpc:
        assert everything(rpc) == before


def test_a_seek_and_a_snapshot_work_after_a_restart(tmp_path: Path) -> None:
    with serving(LocalBroker.open(tmp_path)) as server, Rpc(server.port) as rpc:
        rpc.create_topic(TOPIC)
        rpc.create_subscription(SUBSCRIPTION, TOPIC)
        rpc.publish(TOPIC, b"done", b"open")
        done, _ = rpc.pull(SUBSCRIPTION)
        rpc.acknowledge(SUBSCRIPTION, done.ack_id)
        rpc("CreateSnapshot", name=SNAPSHOT, subscription=SUBSCRIPTION)
        rpc("Seek", subscription=SUBSCRIPTION, time={"seconds": 32_503_680_000})
    with serving(LocalBroker.open(tmp_path)) as server, Rpc(server.port) as rpc:
        assert rpc.pull(SUBSCRIPTION) == []
        rpc("Seek", subscription=SUBSCRIPTION, snapshot=SNAPSHOT)
        assert [one.message.data for one in rpc.pull(SUBSCRIPTION)] == [b"open"]
