"""Publishing in two steps, exactly once: messages are staged, durably and seen by nobody, and a commit publishes all
that a batch has staged, however often it is told to.

A stage is a topic without subscriptions under a name of its own; what is staged is published to it, and read back from
its log. How far the commit of a batch has come stands in a document that is written together with the messages it tells
of, so that a commit that broke off goes on where it was. The first commit of a batch says what belongs to it: one that
is told again, with other parts, because tasks were run anew, publishes the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from heliograph.broker.administration import Administration
from heliograph.broker.reply import Reply
from heliograph.broker.staged_part import StagedPart
from heliograph.engine.limits import RESERVED_KEY_PREFIX
from heliograph.engine.message import Draft, Message, split_message_id
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.engine.topic import STAGING_PREFIX
from heliograph.errors import AlreadyExists, FailedPrecondition, TopicNotFound

STAGE_LIFE_NS = 7 * DAY_NS
"""A stage whose writer never came back is dropped so long after it began."""

LEDGER_LIFE_NS = 30 * DAY_NS
"""A writer that has published nothing for so long is forgotten: each run of a batch query is one."""

LEDGER = "staging"
"""The collection of documents that tell how far each writer's last batch has come."""

PUBLISHED_AT_ONCE = 5_000
"""Messages in one commit of the store, and under one hold of the broker's lock."""


class Batch(msgspec.Struct, frozen=True):
    """How far a batch has come.

    Args:
        number: of the batch; a writer's batches have growing ones.
        stage: where its messages are.
        parts: of it, in the order in which they are published.
        published: how many of their messages are.
        noted_ns: when.
    """

    number: int
    stage: str
    parts: list[StagedPart]
    published: int
    noted_ns: int = 0

    @property
    def left(self) -> int:
        """How many are not published yet."""
        return sum(part.last - part.first + 1 for part in self.parts) - self.published


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


class Staging(Administration):
    """A part of `LocalBroker`."""

    def stage(self, stage: str, drafts: Sequence[Draft]) -> Reply[tuple[int, int]]:
        name = STAGING_PREFIX + stage

        def operation(now_ns: int) -> tuple[int, int]:
            if name not in self._engine.topics:
                self._drop_what_is_old(now_ns)
                settings = TopicSettings(message_retention_ns=STAGE_LIFE_NS)
                self._engine.create_topic(name, settings, now_ns)
            ids = self._engine.publish(name, drafts, now_ns)
            return split_message_id(ids[0])[1], split_message_id(ids[-1])[1]

        return self._change(operation)

    def publish_staged(
        self, writer: str, batch: int, stage: str, parts: Sequence[StagedPart], max_messages: int
    ) -> tuple[int, int]:
        with self._committing:
            known = self._batch(writer)
            if known is None or known.number < batch:
                known = Batch(batch, stage, list(parts), 0)
                for topic in {part.topic for part in parts}:
                    self.get_topic(topic)
            if known.number > batch or not known.left:
                self._finish(known if known.number == batch else Batch(batch, stage, [], 0))
                return 0, 0
            published, noted = 0, Reply[None](None)
            while published < max_messages and known.left:
                known, count, noted = self._publish_some(
                    writer, known, min(max_messages - published, PUBLISHED_AT_ONCE)
                )
                published += count
            noted.result()  # what was appended before it is durable with it
            if not known.left:
                self._finish(known)
            return published, known.left

    def drop_stage(self, stage: str) -> Reply[None]:
        def operation(now_ns: int) -> None:
            if STAGING_PREFIX + stage in self._engine.topics:
                self._engine.delete_topic(STAGING_PREFIX + stage, clears_backlog=True, now_ns=now_ns)

        return self._change(operation)

    def _batch(self, writer: str) -> Batch | None:
        document = self.get_document(LEDGER, writer)
        return None if document is None else _decode(document)

    def _finish(self, batch: Batch) -> None:
        self.drop_stage(batch.stage).result()

    def _publish_some(self, writer: str, batch: Batch, count: int) -> tuple[Batch, int, Reply[None]]:
        """Publish the next ones, at most `count` and all to one topic, together with the note of it."""
        topic, first, last = _next_part(batch)
        last = min(last, first + count - 1)
        drafts = [_draft(message) for messages in self._staged(batch.stage, first, last) for message in messages]
        if len(drafts) != last - first + 1:
            raise FailedPrecondition(f"Stage {batch.stage} has not got all messages that batch {batch.number} needs")
        after = msgspec.structs.replace(batch, published=batch.published + len(drafts))

        def operation(now_ns: int) -> None:
            self._engine.publish(topic, drafts, now_ns)
            note = msgspec.structs.replace(after, noted_ns=now_ns)
            self._engine.put_document(LEDGER, writer, _encode(note))

        return after, len(drafts), self._change(operation)

    def _staged(self, stage: str, first: int, last: int) -> Iterator[list[Message]]:
        try:
            number = self.get_topic(STAGING_PREFIX + stage).number
        except TopicNotFound:
            return iter(())
        return self._store.read_log(number, first, last)

    def _drop_what_is_old(self, now_ns: int) -> None:
        old = [
            topic.name
            for topic in self._engine.topics.values()
            if topic.name.startswith(STAGING_PREFIX) and topic.created_ns < now_ns - STAGE_LIFE_NS
        ]
        for name in old:
            self._engine.delete_topic(name, clears_backlog=True, now_ns=now_ns)
        for writer, document in self._engine.documents.listed(LEDGER):
            if _decode(document).noted_ns < now_ns - LEDGER_LIFE_NS:
                self._engine.delete_document(LEDGER, writer)


def _next_part(batch: Batch) -> tuple[str, int, int]:
    """(topic, first, last) of what is published next."""
    before = batch.published
    for part in batch.parts:
        size = part.last - part.first + 1
        if before < size:
            return part.topic, part.first + before, part.last
        before -= size
    raise AlreadyExists(f"Batch {batch.number} is published")


def _draft(message: Message) -> Draft:
    attributes = message.attributes
    reserved = [key for key in attributes if key.startswith(RESERVED_KEY_PREFIX)] if attributes else None
    if not reserved:
        return Draft(message.data, attributes, message.ordering_key, message.extras)
    of_service = {key: attributes[key] for key in reserved}
    own = {key: value for key, value in attributes.items() if key not in of_service}
    return Draft(message.data, own, message.ordering_key, message.extras, service_attributes=of_service)
