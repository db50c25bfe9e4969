"""An option that the source or the sink does not know is refused, with the one that was meant perhaps."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, StructField, StructType

from heliograph.errors import InvalidArgument
from heliograph.spark import known_options, sink, source
from heliograph.spark.source import HeliographDataSource

TOPIC = "projects/p/topics/t"
SCHEMA = StructType([StructField("data", BinaryType())])


def data_source(**options: str) -> HeliographDataSource:
    return HeliographDataSource(CaseInsensitiveDict({"endpoint": "localhost:1", "topic": TOPIC, **options}))


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("maxMessagePerTrigger", "maxMessagesPerTrigger"),
        ("maxRowsPerTrigger", "maxMessagesPerTrigger"),
        ("startingOffset", "startingOffsets"),
        ("failOnDataloss_", "failOnDataLoss"),
        ("subscribe", "topic"),
        ("kafka.bootstrap.servers", "endpoint"),
        ("path", "topic"),
    ],
)
def test_an_unknown_option_of_a_batch_and_of_a_stream_is_named_with_the_one_that_is_meant(
    option: str, meant: str
) -> None:
    for read in (HeliographDataSource.reader, HeliographDataSource.streamReader):
        with pytest.raises(InvalidArgument, match=f"no option {re.escape(option.lower())}; {meant} is meant"):
            read(data_source(**{option: "1"}), StructType())
    with pytest.raises(InvalidArgument, match=meant):
        data_source(**{option: "1"}).schema()


def test_an_unknown_option_of_the_sink_is_named() -> None:
    for write in (HeliographDataSource.writer, HeliographDataSource.streamWriter):
        with pytest.raises(InvalidArgument, match="The sink heliograph has no option ratepersec; ratePerSecond"):
            write(data_source(ratePerSec="5"), SCHEMA, False)
    with pytest.raises(InvalidArgument, match="no option zzz; there are endpoint, project, ratePerSecond"):
        data_source(zzz="5").streamWriter(SCHEMA, False)


def test_what_spark_adds_by_itself_is_no_mistake() -> None:
    data_source(checkpointLocation="/tmp/c", queryName="q").streamWriter(SCHEMA, False)
    data_source(**{"owner": "root", "provider": "heliograph", "option.topic": TOPIC}).schema()


@pytest.mark.parametrize(
    ("module", "known"), [(source, known_options.READ), (sink, known_options.WRITE)], ids=["source", "sink"]
)
def test_every_option_that_is_known_is_documented_and_the_other_way_round(
    module: object, known: tuple[str, ...]
) -> None:
    text = str(module.__doc__)
    assert [name for name in known if not re.search(rf"\b{name}\b", text)] == []
    if module is source:
        heads = re.findall(r"^((?:\w+, )*\w+)  ", text, re.MULTILINE)
        told = {name for head in heads for name in head.split(", ")}
        assert told - set(known) == set()
