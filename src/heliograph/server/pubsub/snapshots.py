"""Snapshots and seeking (protocol 1.11): the methods of Subscriber about them, and `Publisher.ListTopicSnapshots`."""

from __future__ import annotations

from typing import Any

from heliograph.broker.protocol import Broker, SnapshotInfo
from heliograph.engine.settings import NEVER_NS, SECOND_NS
from heliograph.errors import AlreadyExists, InvalidArgument
from heliograph.server.call import Call
from heliograph.server.feed import Feeds
from heliograph.server.pubsub import masks, names, policies, proto
from heliograph.server.pubsub.limits import check_labels
from heliograph.server.pubsub.paging import page, page_of
from heliograph.server.pubsub.profile import STRICT, Profile
from heliograph.server.pubsub.proto import serialized
from heliograph.server.pubsub.quotas import Quota, in_project
from heliograph.server.pubsub.texts import exists

IMMUTABLE = ("name", "topic")
"""Fields that no update changes."""


class Snapshots:
    """See the module.

    Args:
        broker: who does it.
        feeds: who waits on which subscription.
        profile: how strictly.
    """

    def __init__(self, broker: Broker, feeds: Feeds, profile: Profile = STRICT) -> None:
        self._broker = broker
        self._feeds = feeds
        self._profile = profile
        all_of = in_project(lambda: [info.name for info in broker.list_snapshots()], "snapshots")
        self._of_project = Quota("snapshots", profile.snapshots_max, all_of)

    async def create_snapshot(self, request: Any, _call: Call) -> bytes:
        """CreateSnapshot: of what is unacknowledged now; without a name it gets one (1.2.3, 1.11.4)."""
        self._profile.check_name(request.subscription, "subscriptions")
        name: str = request.name or names.assigned(request.subscription, "snapshots")
        self._profile.check_new_name(name, "snapshots")
        check_labels(request.labels)
        try:
            with self._of_project.room(names.project(name)):
                created = self._broker.create_snapshot(name, request.subscription, labels=dict(request.labels))
                await policies.forget(self._broker, name)
                info = await created
        except AlreadyExists:
            raise exists(name) from None
        return serialized(resource(info))

    async def get_snapshot(self, request: Any, _call: Call) -> bytes:
        """GetSnapshot."""
        self._profile.check_name(request.snapshot, "snapshots")
        return serialized(resource(self._broker.get_snapshot(request.snapshot)))

    async def list_snapshots(self, request: Any, _call: Call) -> bytes:
        """ListSnapshots of a project, by name."""
        self._profile.check_project(request.project)
        prefix = f"{request.project}/snapshots/"
        infos = [info for info in self._broker.list_snapshots() if info.name.startswith(prefix)]
        resources, token = page_of(
            [info.name for info in infos], request.page_size, request.page_token, lambda index: resource(infos[index])
        )
        return serialized(proto.ListSnapshotsResponse(snapshots=resources, next_page_token=token))

    async def list_topic_snapshots(self, request: Any, _call: Call) -> bytes:
        """Publisher.ListTopicSnapshots: full names (1.3.7)."""
        self._profile.check_name(request.topic, "topics")
        found = [info.name for info in self._broker.list_snapshots(request.topic)]
        part, token = page(found, request.page_size, request.page_token)
        return serialized(proto.ListTopicSnapshotsResponse(snapshots=found[part], next_page_token=token))

    async def update_snapshot(self, request: Any, _call: Call) -> bytes:
        """UpdateSnapshot: labels, and when it expires (1.11.5)."""
        name: str = request.snapshot.name
        self._profile.check_name(name, "snapshots")
        info = self._broker.get_snapshot(name)
        wanted = masks.merged(resource(info), request.snapshot, request.update_mask, IMMUTABLE)
        check_labels(wanted.labels)
        updated = await self._broker.update_snapshot(
            name, expires_ns=_instant_ns(wanted.expire_time), labels=dict(wanted.labels), resource=info.resource
        )
        return serialized(resource(updated))

    async def delete_snapshot(self, request: Any, _call: Call) -> bytes:
        """DeleteSnapshot: what it held may go."""
        self._profile.check_name(request.snapshot, "snapshots")
        deleted = self._broker.delete_snapshot(request.snapshot)
        await policies.forget(self._broker, request.snapshot)
        await deleted
        return b""

    async def seek(self, request: Any, _call: Call) -> bytes:
        """Seek, at once: to a time, or to what a snapshot tells (1.11.2, 1.11.3, 1.11.6)."""
        self._profile.check_name(request.subscription, "subscriptions")
        target = request.WhichOneof("target")
        if target is None:
            raise InvalidArgument(
                "No target was specified in the SeekRequest. Must specify either a time or a snapshot"
            )
        name: str = request.subscription
        feed = self._feeds.get(name)
        void = list(feed.holders) if feed is not None else []
        if target == "time":
            sought = self._broker.seek_to_time(name, _instant_ns(request.time))
        else:
            self._profile.check_name(request.snapshot, "snapshots")
            sought = self._broker.seek_to_snapshot(name, request.snapshot)
        if feed is not None:
            feed.settled(void)  # they weigh on no stream any more
        await sought
        return b""


def resource(info: SnapshotInfo) -> Any:
    """The Snapshot that a client is shown."""
    snapshot = proto.Snapshot(name=info.name, labels=info.labels)
    snapshot.topic = names.DELETED_TOPIC if info.topic_deleted else info.topic
    snapshot.expire_time.seconds, snapshot.expire_time.nanos = divmod(info.expires_ns, SECOND_NS)
    return snapshot


def _instant_ns(timestamp: Any) -> int:
    """A `Timestamp` as nanoseconds since the epoch, within what the broker can keep: year 3000 means never."""
    instant_ns = int(timestamp.seconds) * SECOND_NS + int(timestamp.nanos)
    return min(max(instant_ns, 0), NEVER_NS)
