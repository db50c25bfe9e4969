"""PySpark's entry point: it imports every top-level module named `pyspark_…` and registers its `DefaultSource`."""

from heliograph.spark.source import HeliographDataSource as DefaultSource

__all__ = ["DefaultSource"]
