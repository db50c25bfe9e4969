"""A streaming query from a topic or a subscription through tasks into another topic, here or as a process of its own
that can be killed. Its options, as JSON for the process:

=============  ========================================================================================================
source, sink   options of the two
checkpoint     a directory
pause          seconds that a task works on a record batch
fails_once     a file that does not exist: the first task makes it, and fails
holds          a file that does not exist: a task of the second micro-batch makes it, and works on and on
twice          true: in `foreachBatch`, each micro-batch is counted as well, so that it is read twice
master, conf   of the process's session
=============  ========================================================================================================
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def worker(options: dict[str, Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `DataFrame.mapInArrow`: passes on what it gets, with the accidents that the options ask for."""
    fails_once, holds, pause = options.get("fails_once", ""), options.get("holds", ""), float(options.get("pause", 0))

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        for batch in batches:
            if fails_once:
                try:
                    Path(fails_once).touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    raise RuntimeError("this task fails once")
            if holds:
                context = TaskContext.get()
                assert context is not None
                if context.getLocalProperty("streaming.sql.batchId") == "1":
                    Path(holds).touch()
                    time.sleep(3600)  # the test kills it here
            time.sleep(pause)  # so that a batch lasts long enough to be killed in
            yield batch

    return work


def run(spark: SparkSession, options: dict[str, Any]) -> None:
    """The query, on what there is now, to its end."""
    messages = spark.readStream.format("heliograph").options(**options["source"]).load()
    columns = messages.selectExpr("data", "map('id', message_id) AS attributes", "ordering_key")
    harmless = not any(options.get(name) for name in ("pause", "fails_once", "holds"))
    worked = columns if harmless else columns.mapInArrow(worker(options), columns.schema)
    writer = worked.writeStream.option("checkpointLocation", options["checkpoint"])
    sink = options["sink"]

    def use_twice(batch: DataFrame, number: int) -> None:
        counted = batch.count()
        batch.write.format("heliograph").mode("append").options(**sink).save()
        assert batch.count() == counted

    writer = writer.foreachBatch(use_twice) if options.get("twice") else writer.format("heliograph").options(**sink)
    writer.trigger(availableNow=True).start().awaitTermination()


def main(options: dict[str, Any]) -> None:
    from heliograph.spark.session import create_session

    spark = create_session("heliograph tests", master=options["master"], brief=True, conf=options.get("conf"))
    run(spark, options)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
