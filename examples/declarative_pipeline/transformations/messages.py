"""The topic's log as a table: the one thing that needs Python, since SQL has no words for a source's options."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def messages() -> DataFrame:
    """Every message as it was published. The stream goes on where the run before has ended."""
    topic = spark.conf.get("spark.flights.topic")
    return spark.readStream.format("heliograph").options(topic=topic, startingOffsets="earliest").load()
