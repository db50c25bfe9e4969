"""A SparkSession that starts fast, says nothing on the terminal and finds its Java by itself."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.errors import FailedPrecondition, InvalidArgument
from heliograph.spark import java
from heliograph.spark.failure import in_one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J2 = Path(__file__).with_name("log4j2.properties")
"""Silence by default; Spark's own configuration prints several lines of warnings at every start."""

CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Renames within one file system; a third faster than the default for micro-batches on local disks."""

_MASTER = re.compile(r"local(\[[0-9*]+(, *[0-9]+)?\])?|local-cluster\[.+\]|(spark|sc|k8s)://.+|yarn")

LOCAL_CONF: Mapping[str, str] = {
    # Two cores and small tables: more shuffle partitions only cost tasks.
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # No web server, no progress bar, no Derby database in the working directory.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # Loopback only, and no look-up of the machine's name.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
}
"""What makes `local[…]` fast and private."""

ALWAYS_CONF: Mapping[str, str] = {
    # Publish times are instants; hours and days of archives are those of UTC.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # Instants that every reader knows as such; Spark's default is an old form without a time zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Filters go to the source, which then reads less.
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""What the pipeline relies on, whatever the master."""


def create_session(
    app_name: str = "heliograph",
    *,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    log_level: str = "off",
    brief: bool = False,
) -> SparkSession:
    """The session of this process, started if there is none yet (four to eight seconds on two cores).

    Args:
        app_name: what Spark shows.
        master: `local[*]`, `local[N]`, `spark://host:port`; `sc://host:port` is Spark Connect and needs no Java here.
        conf: Spark settings that win over ours.
        log_level: what Spark writes on standard error: "off", "error", "warn" or "info". Whatever makes a query fail
            is in the exception that it raises.
        brief: this session lives for a minute or two. Its JVM then compiles quickly rather than well, which takes a
            third off the processor time of such a session, and would slow a long one down.

    Raises:
        FailedPrecondition: PySpark is not installed, or there is no Java to run it on; the message says what to do.
        InvalidArgument: Spark knows no such master.
        Internal: Spark did not start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        command = f"{shlex.quote(sys.executable)} -m pip install 'heliograph[spark]'"
        raise FailedPrecondition(f"Spark is not installed here ({error}); run: {command}") from None
    settings: dict[str, bool | float | int | str | None] = dict(ALWAYS_CONF)
    connect = checked_master(master).startswith("sc://")
    if not connect:
        prepare_environment()
        settings["spark.driver.extraJavaOptions"] = java_options(
            log_level, serial=master.startswith("local"), brief=brief
        )
    if master.startswith("local"):
        settings |= LOCAL_CONF
    settings |= conf or {}
    builder = SparkSession.builder.appName(app_name).config(map=settings)
    builder = builder.remote(master) if connect else builder.master(master)
    with in_one_line("Starting Spark"):
        return builder.getOrCreate()


def checked_master(master: str) -> str:
    """The same. Raises: InvalidArgument (Spark knows no such master; its own launcher says so with a page of Java)."""
    if _MASTER.fullmatch(master) is None:
        raise InvalidArgument(f"The master must be local[*], spark://HOST:PORT or sc://HOST:PORT, not {master!r}")
    return master


def prepare_environment() -> java.Java:
    """Set what the JVM and the Python workers that Spark starts inherit from this process.

    Raises:
        FailedPrecondition: no Java 17 or newer; the message says what to do.
    """
    found = java.find()
    if found is None:
        raise FailedPrecondition(f"Spark needs Java {java.VERSION_MIN} or newer, found none: {java.HOW_TO_GET_ONE}")
    os.environ["JAVA_HOME"] = str(java.shim_home(found))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return found


def java_options(log_level: str, *, serial: bool, brief: bool) -> str:
    """The driver JVM's arguments. `serial`: the collector that suits two cores and a small heap; `brief`: see above."""
    options = [f"-Dlog4j2.configurationFile={LOG4J2.as_uri()}", f"-Dheliograph.log.level={log_level}"]
    if serial:
        options.append("-XX:+UseSerialGC")
    if brief:
        options.append("-XX:TieredStopAtLevel=1")
    return " ".join(shlex.quote(option) for option in options)
