"""A streaming query as a process of its own, to be killed: messages of one topic or subscription, worked on by tasks,
into another topic. Takes its options as JSON.

=============  ========================================================================================================
master         of the session
source, sink   options of the two
checkpoint     a directory
pause          seconds that a task works on a record batch
fails_once     a file that does not exist: the first task makes it, and fails
twice          true: each micro-batch is counted as well, in this directory, so that it is read twice
=============  ========================================================================================================
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main(options: dict[str, Any]) -> None:
    from pyspark.sql import DataFrame

    from heliograph.spark.session import create_session

    fails_once, pause = options.get("fails_once", ""), float(options.get("pause", 0))

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if fails_once:
                try:
                    Path(fails_once).touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    raise RuntimeError("this task fails once")
            time.sleep(pause)
            yield batch

    def count(batch: DataFrame, number: int) -> None:
        ids = [row.id for row in batch.selectExpr("attributes['id'] AS id").collect()]
        again = [row.id for row in batch.selectExpr("attributes['id'] AS id").collect()]
        Path(options["twice"], f"{number}.json").write_text(json.dumps([sorted(ids), sorted(again)]))

    spark = create_session("heliograph tests", master=options["master"], brief=True, conf=options.get("conf"))
    messages = spark.readStream.format("heliograph").options(**options["source"]).load()
    columns = messages.selectExpr("data", "map('id', message_id) AS attributes", "ordering_key")
    worked = columns.mapInArrow(work, columns.schema) if pause or fails_once else columns
    writer = worked.writeStream.option("checkpointLocation", options["checkpoint"])
    if options.get("twice"):
        writer = writer.foreachBatch(count)
    else:
        writer = writer.format("heliograph").options(**options["sink"])
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
