"""Publishes what the job `refine` puts aside to a dead letter topic, exactly once, in the way of the sink.

The messages of a batch are staged at the broker and published under the batch's last position, which the broker does
once. A run that was killed in between repeats that very batch: the broker goes on where it was.

A message has its data, ordering key, priority and attributes (but not those that the broker gives, and not more than
there is room for), and tells in attributes `x-quarantined-…` which one it was and what was wrong.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from heliograph.spark.pipeline.job import Place
from heliograph.spark.pipeline.replay import STAGED, stager
from heliograph.spark.sink import PUBLISHED_AT_ONCE
from heliograph.spark.stage_client import Part, StageClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREFIX = "x-quarantined-"
ATTRIBUTES_MAX = 90
"""Of the message's own; a hundred are what Pub/Sub allows."""

ERROR_CHARACTERS_MAX = 200
"""In an attribute, which may have a kilobyte."""

MESSAGES = f"""
    SELECT sequence, data, ordering_key, priority,
        map_concat(
            map_from_entries(slice(map_entries(
                map_filter(attributes, (name, _) -> name NOT LIKE 'goog%' AND name NOT LIKE '{PREFIX}%')
            ), 1, {ATTRIBUTES_MAX})),
            map(
                '{PREFIX}topic', {{topic}}, '{PREFIX}id', message_id, '{PREFIX}sequence', CAST(sequence AS STRING),
                '{PREFIX}reason', reason, '{PREFIX}error', left(error, {ERROR_CHARACTERS_MAX})
            )
        ) AS attributes
    FROM {{rows}} ORDER BY sequence
"""


class Rejects:
    """What is put aside of one topic, on its way.

    Args:
        spark: where to run.
        place: the broker, and the pipeline that publishes.
        topic: full name of the topic whose messages these are.
        to: full name of the dead letter topic.
    """

    def __init__(self, spark: SparkSession, place: Place, topic: str, to: str) -> None:
        self._spark = spark
        self._place = place
        self._topic = topic
        self._to = to
        self._pipeline = hashlib.sha256(str(place.directory).encode()).hexdigest()[:12]

    def publish(self, rows: DataFrame, number: int, last: int) -> int:
        """Publish the rows of a batch, with `reason` and `error`, unless it was done.

        Args:
            rows: of the quarantine.
            number: of the topic.
            last: the batch's last position.

        Returns:
            How many were published now.

        Raises:
            TopicNotFound, InvalidArgument (the topic's schema does not take them), Unavailable.
        """
        writer = f"refine/{self._pipeline}/{self._topic}/{number}"
        stage = f"{writer}/{last}"  # not dropped first: a commit that broke off may need what is in it
        messages = self._spark.sql(MESSAGES, rows=rows, topic=self._topic)
        staged = messages.mapInArrow(stager(self._place.address, stage, self._to), STAGED).collect()
        parts = [Part(self._to, row.first, row.last) for row in sorted(staged, key=lambda row: row.sequence)]
        client, total, left = StageClient(self._place.address, stage), 0, len(parts)
        while left:
            published, left = client.publish(writer, last, parts, PUBLISHED_AT_ONCE)
            total += published
        return total
