"""Heliograph as a Spark source: `spark.read.format("heliograph")` and `spark.readStream.format("heliograph")`.

::

    messages = (spark.readStream.format("heliograph")
        .option("endpoint", "http://127.0.0.1:8085")
        .option("topic", "projects/demo/topics/flights")
        .load())

The options (Kafka's names where Kafka has them; upper and lower case are the same to Spark):

======================  =============================================================================================
endpoint                the broker, `http://host:port`; default: PUBSUB_EMULATOR_HOST, else http://127.0.0.1:8085
token                   sent as a bearer token
mode                    `log` (default): topics' logs, which any number of queries read by themselves; `queue` (default
                        with a subscription; streams only): messages are claimed, and acknowledged once what the query
                        made of them is durable; `events`: what happened to messages, from the broker's event log
topic, topics           the topic's full name, or a short one together with `project`; several, separated by commas
topicPattern            a regular expression that a topic's full name matches as a whole; topics that appear later are
                        read from their beginning
subscription            of mode queue: its full name, or a short one together with `project`
project                 the project of short names
startingOffsets         `earliest` (default of batch queries), `latest` (default of streams), the first sequence to
                        read, or JSON by topic: `{"projects/p/topics/t": 1042}`
startingTimestamp       in its place: what was published at this instant or later; milliseconds since the epoch or ISO
startingSnapshot        in its place: from the first message on that this snapshot had not acknowledged
endingOffsets           batch: `latest` (default), `earliest`, a sequence or JSON by topic: the first one not to read
endingTimestamp         batch, in its place: what was published before this instant
maxMessagesPerTrigger   streams: a micro-batch takes no more (`maxOffsetsPerTrigger` is the same); mode queue: 100000;
                        mode events: rows, but what was committed together is never divided
maxBytesPerTrigger      streams: nor more than about so much: 64m, 1g, or bytes; of payload, or of the rows of events
minMessagesPerTrigger   streams: a micro-batch waits until there are so many (`minOffsetsPerTrigger` is the same),
maxTriggerDelay         but no longer than this: 30s, 15m (default)
minPartitions           read in at least so many parallel parts; default: the cores of the driver's machine
includePayload          false: no column `data` (Spark cannot leave out columns by itself here)
includeAttributes       false: no column `attributes`
failOnDataLoss          true (default): fail when the broker has not got any more what is to be read, or has given it to
                        others; false: go on with what there is
pushdown                true (default): batch queries read only what filters on `sequence`, `topic`, `publish_time` and
                        `publish_time_ns` leave, or on `position` of events, in a session that has
                        `spark.sql.python.filterPushdown.enabled`, as `create_session` sets it; false: all
consumer                who reads, for the broker: lag is shown under this name, and in mode queue claims are found by
                        it again, so that each query needs one of its own; default `spark`
claimSize               mode queue: messages of one task; default 10000
claimTtl                mode queue: how long claims last without a sign of life of the query; default 1h, at most 7d
protocol                mode queue: `pubsub` pulls from any server that speaks Google Cloud Pub/Sub's REST interface;
                        messages may come twice then
timeoutSeconds          the longest silence of the broker that is borne; default 60
======================  =============================================================================================

Offsets are the topic's sequence numbers, so a micro-batch that is repeated, and a DataFrame that is used twice, have
the same messages; so have claims, until they are acknowledged. The module is imported in every Python worker, so it
stays light.
"""

from __future__ import annotations

import gc
import sys

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from heliograph.errors import InvalidArgument
from heliograph.spark.columns import COLUMNS, chosen, struct
from heliograph.spark.event_reader import EventReader, EventStreamReader
from heliograph.spark.log_reader import LogReader
from heliograph.spark.log_stream import LogStreamReader
from heliograph.spark.options import ReadOptions
from heliograph.spark.pubsub_stream import PubSubStreamReader
from heliograph.spark.queue_stream import QueueStreamReader
from heliograph.spark.sink import HeliographStreamWriter, HeliographWriter, WriteOptions

__all__ = ["COLUMNS", "HeliographDataSource", "LogReader"]

if getattr(sys.modules["__main__"].__spec__, "name", "") == "pyspark.daemon":
    # A worker of Spark looks for garbage after each of its tasks, among all that it has imported: 50 ms that four
    # workers spend on every query and every micro-batch. Modules are no garbage.
    gc.freeze()


class HeliographDataSource(DataSource):
    """The data source; Spark makes one from the options of a query."""

    @classmethod
    def name(cls) -> str:
        """What `format(…)` calls it."""
        return "heliograph"

    def schema(self) -> StructType:
        """The columns, as the options choose them. Raises: InvalidArgument."""
        options = ReadOptions.parse(self.options)
        return struct(chosen(options.mode, options.left_out))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader. Raises: InvalidArgument."""
        options = ReadOptions.parse(self.options)
        if options.mode == "queue":
            raise InvalidArgument(
                "A subscription is read as a stream (spark.readStream, with trigger(availableNow=True) for what "
                "is there "
                "now); a batch query reads a topic"
            )
        if options.mode == "events":
            return EventReader(options)
        return LogReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The batch writer; see `sink.py`. Raises: InvalidArgument, TopicNotFound, Unavailable."""
        if overwrite:
            raise InvalidArgument('A topic is a log, and cannot be overwritten: use mode("append")')
        return HeliographWriter(WriteOptions.parse(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The stream writer; see `sink.py`. Raises: InvalidArgument."""
        return HeliographStreamWriter(WriteOptions.parse(self.options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The stream reader. Raises: InvalidArgument."""
        options = ReadOptions.parse(self.options)
        if options.mode == "queue":
            return PubSubStreamReader(options) if options.protocol == "pubsub" else QueueStreamReader(options)
        return EventStreamReader(options) if options.mode == "events" else LogStreamReader(options)
