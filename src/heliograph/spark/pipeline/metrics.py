"""Figures for each subscription and window of time, from the broker's event log.

A batch covers a range of the event log's positions, and adds partial figures: counts, which add up; sketches of the
times of waiting and processing, which merge; and gauges at the end of each window, of which the latest counts. So a
window that two batches share, and windows that are rolled up to longer ones, have the right figures. `metrics/` has the
parts, `metrics-by-window/` the figures, written anew by each run.

Which messages are open is carried from batch to batch in `metrics/_open/POSITION`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from heliograph.errors import FailedPrecondition, InvalidArgument
from heliograph.spark.failure import in_one_line
from heliograph.spark.pipeline.gauges import Span, gauges
from heliograph.spark.pipeline.job import Outcome, Place, Tell, replaced, silent
from heliograph.spark.pipeline.settlements import SETTLED, Open, open_of
from heliograph.spark.pipeline.table import Commit, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SERIES = "events"
BATCH_POSITIONS_MAX = 200_000
WINDOW_SECONDS_MIN = 1.0
OPEN = "topic STRING, subscription STRING, message_id STRING, published_ns BIGINT"
SUBSCRIPTIONS = "topic STRING, subscription STRING, created_ns BIGINT, is_filtered BOOLEAN"
RUNS = "subscription STRING, first BIGINT, stop BIGINT"
"""Of sequences that a subscription with a filter has not acknowledged, up to but not including the second: the event
log does not tell which messages a filter lets pass; what was delivered did, and so did what is open now."""

GAUGES = "topic STRING, subscription STRING, window BIGINT, backlog BIGINT, oldest_ns BIGINT"

COUNTED = ("delivered", "acknowledged", "nacked", "expired", "released", "dead_lettered", "dropped", "purged")

SPANS = f"""
    WITH arrived AS (
        SELECT e.topic, s.subscription, e.message_id, e.event_time_ns AS published_ns, e.position
        FROM {{events}} e JOIN {{subscriptions}} s ON s.topic = e.topic AND e.event_time_ns >= s.created_ns
            LEFT JOIN {{runs}} r ON r.subscription = s.subscription AND e.sequence >= r.first AND e.sequence < r.stop
        WHERE e.event = 'published' AND (NOT s.is_filtered OR r.subscription IS NOT NULL)
        UNION ALL SELECT topic, subscription, message_id, published_ns, 0 FROM {{open}}
    ),
    moved AS (
        SELECT subscription, max(struct(position, event_time_ns)) AS moved FROM {{events}}
        WHERE event = 'sought' AND message_id IS NULL GROUP BY subscription
    ),
    told AS (
        SELECT subscription, message_id, topic, position, event, event_time_ns, wait_us FROM {{events}}
        WHERE subscription IS NOT NULL AND message_id IS NOT NULL AND last_sequence IS NULL
        UNION ALL
        SELECT subscription, CAST(id AS STRING), topic, position, event, event_time_ns, wait_us FROM (
            SELECT *, explode(sequence(
                CAST(message_id AS BIGINT), CAST(message_id AS BIGINT) + last_sequence - sequence)) AS id
            FROM {{events}} WHERE last_sequence IS NOT NULL
        )
    ),
    touched AS (
        SELECT subscription, message_id, first(topic, true) AS topic, max(struct(position, event_time_ns)) AS place,
            CASE WHEN max_by(event, struct(position, event_time_ns, event IN {SETTLED})) IN {SETTLED}
                THEN max(event_time_ns) END AS settled_ns,
            coalesce(
                min(CASE WHEN event = 'delivered' THEN event_time_ns - wait_us * 1000 END),
                min(CASE WHEN event IN ('sought', 'retried') THEN event_time_ns END)
            ) AS published_ns
        FROM told GROUP BY subscription, message_id
    )
    SELECT coalesce(a.topic, t.topic) AS topic, coalesce(a.subscription, t.subscription) AS subscription,
        coalesce(a.message_id, t.message_id) AS message_id, coalesce(a.published_ns, t.published_ns) AS published_ns,
        CASE WHEN t.settled_ns IS NULL
                AND coalesce(t.place, struct(a.position, a.published_ns AS event_time_ns)) < m.moved
            THEN m.moved.event_time_ns ELSE t.settled_ns END AS settled_ns
    FROM arrived a FULL OUTER JOIN touched t ON a.subscription = t.subscription AND a.message_id = t.message_id
        LEFT JOIN moved m ON coalesce(a.subscription, t.subscription) = m.subscription
"""
"""Every message that was open at some time within the batch: since when, and until when."""

GROUPED = """
    SELECT topic, subscription, greatest(published_ns DIV {width}, {first} - 1) AS published,
        settled_ns DIV {width} AS settled, count(*) AS count, min(published_ns) AS oldest_ns
    FROM {spans} WHERE published_ns IS NOT NULL GROUP BY ALL
"""

COUNTS = f"""
    WITH counted AS (
        SELECT topic, subscription, event_time_ns DIV {{width}} AS window, event, attempt, wait_us, processing_us
        FROM {{events}} WHERE subscription IS NOT NULL
        UNION ALL
        SELECT e.topic, s.subscription, e.event_time_ns DIV {{width}}, 'published', NULL, NULL, NULL
        FROM {{events}} e JOIN {{subscriptions}} s ON s.topic = e.topic AND e.event_time_ns >= s.created_ns
        WHERE e.event = 'published'
    )
    SELECT topic, subscription, window, count_if(event = 'published') AS published,
        {", ".join(f"count_if(event = '{event}') AS {event}" for event in COUNTED)},
        count_if(event = 'delivered' AND attempt > 1) AS redelivered,
        count_if(event = 'delivered' AND attempt = 1) AS first_delivered,
        kll_sketch_agg_bigint(wait_us) FILTER (WHERE event = 'delivered' AND attempt = 1) AS waits,
        kll_sketch_agg_bigint(processing_us) FILTER (WHERE event = 'acknowledged') AS processings
    FROM counted GROUP BY topic, subscription, window
"""

PARTS = """
    SELECT coalesce(c.topic, g.topic) AS topic, coalesce(c.subscription, g.subscription) AS subscription,
        coalesce(c.window, g.window) AS window, c.* EXCEPT (topic, subscription, window), g.backlog, g.oldest_ns,
        {width} AS width_ns, {position} AS position, {end_ns} AS end_ns
    FROM {counts} c FULL OUTER JOIN {gauges} g
        ON c.topic = g.topic AND c.subscription = g.subscription AND c.window = g.window
"""

_SUMS = ("published", *COUNTED, "redelivered", "first_delivered")
_QUANTILES = ", ".join(
    f"CASE WHEN {counted} > 0 THEN kll_sketch_get_quantile_bigint({sketch}, 0.{share}) / 1e3 END AS {name}_ms_p{share}"
    for name, sketch, counted in (("wait", "waits", "first_delivered"), ("processing", "processings", "acknowledged"))
    for share in (50, 95, 99)
)

BY_WINDOW = f"""
    WITH merged AS (
        SELECT topic, subscription, window * width_ns DIV {{width}} AS window,
            {", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in _SUMS)},
            kll_merge_agg_bigint(waits) AS waits, kll_merge_agg_bigint(processings) AS processings,
            max_by(backlog, struct(window, position)) FILTER (WHERE backlog IS NOT NULL) AS backlog,
            max_by(struct(oldest_ns, least(end_ns, (window + 1) * width_ns) AS at_ns), struct(window, position))
                FILTER (WHERE backlog IS NOT NULL) AS oldest
        FROM {{parts}} GROUP BY ALL
    )
    SELECT topic, subscription, timestamp_micros(window * {{width}} DIV 1000) AS window_start,
        {{width}} / 1e9 AS window_seconds, {", ".join(_SUMS)},
        {", ".join(f"{name} / ({{width}} / 1e9) AS {name}_per_second" for name in _SUMS[:3])},
        {_QUANTILES},
        backlog, coalesce((oldest.at_ns - oldest.oldest_ns) / 1e9, 0) AS oldest_age_seconds,
        try_divide(redelivered, delivered) AS redelivery_ratio,
        try_divide(dead_lettered, published) AS dead_letter_ratio
    FROM merged
"""
"""With any width that is a whole multiple of the parts' own."""


def width_ns(window_seconds: float) -> int:
    """The width of windows in nanoseconds.

    Args:
        window_seconds: the same in seconds.

    Raises:
        InvalidArgument: it is less than a second. Each window in which nothing happened costs a row of every
            subscription, too.
    """
    if window_seconds < WINDOW_SECONDS_MIN:
        raise InvalidArgument(f"A window is a second wide or more, not {window_seconds:g} s")
    return int(window_seconds * 1e9)


def metrics(spark: SparkSession, place: Place, *, window_seconds: float = 60.0, tell: Tell = silent) -> Outcome:
    """Add what happened since the last run, and write the figures anew.

    Args:
        spark: where to run.
        place: broker and tables.
        window_seconds: the width of windows; of parts that are there already it does not change.
        tell: is told of progress.

    Raises:
        InvalidArgument: the windows are too narrow.
        FailedPrecondition: the broker keeps no event log, or another one than before.
        Unavailable: no broker answers.
    """
    table = Table(place.table("metrics"))
    width = width_ns(window_seconds)
    first, last = place.events.bounds()
    remarks: list[str] = []
    rows = 0
    with table.changing():
        table.settle(SERIES)
        begin = table.next_position(SERIES, 1, first)
        if begin > last + 1:
            raise FailedPrecondition(
                f"The event log ends at position {last}, and {begin - 1} was read already: it is another broker's. "
                f"Remove {table.directory} to begin anew"
            )
        if begin < first:
            remarks.append(f"What happened at positions {begin} to {first - 1} is past the event log's retention.")
            begin = max(begin, first)
        found = (open_of(place, each.subscription) for each in place.subscriptions())
        subscriptions = [each for each in found if each is not None]
        while begin <= last:
            end = min(begin + BATCH_POSITIONS_MAX - 1, last)
            tell(f"positions {begin:,} to {end:,}")
            with in_one_line("Measuring"):
                added = _Batch(spark, place, table, subscriptions, width).add(begin, end)
            tell(f"positions {begin:,} to {end:,}", added, last - end)
            rows += added
            begin = end + 1
    figures: dict[str, int | float | str] = {"events": rows}
    if table.files(SERIES) and (rows or not place.table("metrics-by-window").exists()):
        with in_one_line("Measuring"), replaced(place.table("metrics-by-window")) as target:
            read_metrics(spark, place.directory, window_seconds).coalesce(1).write.parquet(str(target))
    figures |= _summary(place.table("metrics-by-window"))
    return Outcome(rows, max(place.events.bounds()[1] - last, 0), figures, tuple(remarks))


def read_metrics(spark: SparkSession, directory: Path, window_seconds: float = 60.0) -> DataFrame:
    """The figures by subscription and window, one row each; of windows of any width that is a multiple of that of the
    parts. Columns: topic, subscription, window_start, window_seconds, counts by event and some of them per second,
    `wait_ms_p50` and so on, `processing_ms_…`, backlog and oldest_age_seconds at the window's end, ratios."""
    table = Table(directory / "metrics")
    paths = [str(path) for path in table.files(SERIES)]
    if not paths:
        raise FailedPrecondition("Nothing was measured yet: the event log is empty")
    parts = spark.read.parquet(*paths)
    return spark.sql(BY_WINDOW, parts=parts, width=int(window_seconds * 1e9))


def write_by_day(parts: DataFrame, target: Path) -> None:
    """Write parts of figures below `target`, by the day of their windows."""
    day = "date_format(timestamp_micros(window * width_ns DIV 1000), 'yyyy-MM-dd') AS dt"
    writer = parts.selectExpr("*", day).coalesce(1).write.partitionBy("dt")
    writer.option("compression", "zstd").parquet(str(target))


class _Batch:
    """One range of positions."""

    def __init__(self, spark: SparkSession, place: Place, table: Table, subscriptions: list[Open], width: int) -> None:
        self._spark = spark
        self._place = place
        self._table = table
        self._width = width
        self._names = {each.subscription for each in subscriptions}
        rows = [(each.topic, each.subscription, each.created_ns, each.is_filtered) for each in subscriptions]
        self._subscriptions = spark.createDataFrame(rows, SUBSCRIPTIONS)
        runs = [(each.subscription, *run) for each in subscriptions if each.is_filtered for run in each.runs]
        self._runs = spark.createDataFrame(runs, RUNS)

    def add(self, first: int, last: int) -> int:
        """Returns how many events there were."""
        events = self._place.read_events(self._spark, first, last).cache()
        try:
            row = events.selectExpr(
                "count(*) AS n", "min(event_time_ns) AS low", "max(event_time_ns) AS high"
            ).collect()[0]
            draft = Commit(SERIES, 1, first, last, [], figures={"events": row.n})
            spans = self._spark.sql(
                SPANS, events=events, subscriptions=self._subscriptions, runs=self._runs, open=self._open(first)
            ).cache()
            try:
                self._keep_open(spans, last)
                self._table.write(
                    draft, lambda target: self._write(target, events, spans, row, last), lambda rows: None
                )
            finally:
                spans.unpersist()
        finally:
            events.unpersist()
        self._forget_open(last)
        return int(row.n)

    def _write(self, target: Path, events: DataFrame, spans: DataFrame, row: Any, position: int) -> None:
        if not row.n:
            return
        low, high = row.low // self._width, row.high // self._width
        groups = self._spark.sql(GROUPED, spans=spans, width=self._width, first=low).collect()
        by_subscription: dict[tuple[str, str], list[Span]] = {}
        for each in groups:
            span = Span(each.published, each.settled, each["count"], each.oldest_ns)
            by_subscription.setdefault((each.topic, each.subscription), []).append(span)
        found = [
            (topic, subscription, gauge.window, gauge.backlog, gauge.oldest_ns)
            for (topic, subscription), spans_ in by_subscription.items()
            for gauge in gauges(spans_, low, high)
        ]
        counts = self._spark.sql(COUNTS, events=events, subscriptions=self._subscriptions, width=self._width)
        parts = self._spark.sql(
            PARTS,
            counts=counts,
            gauges=self._spark.createDataFrame(found, GAUGES),
            width=self._width,
            position=position,
            end_ns=row.high,
        )
        write_by_day(parts, target)

    def _open(self, first: int) -> DataFrame:
        """What was open before position `first`."""
        earlier = [commit for commit in self._table.commits(SERIES) if commit.last < first]
        directory = self._state(max(commit.last for commit in earlier)) if earlier else None
        if directory is None or not directory.exists():
            return self._spark.createDataFrame([], OPEN)
        return self._spark.read.schema(OPEN).parquet(str(directory))

    def _keep_open(self, spans: DataFrame, last: int) -> None:
        state = self._state(last)
        still = spans.where("settled_ns IS NULL AND published_ns IS NOT NULL")
        if self._names:
            still = still.where(still.subscription.isin(*self._names))
        with replaced(state) as target:
            columns = [field.split()[0] for field in OPEN.split(", ")]
            still.select(*columns).write.option("compression", "zstd").parquet(str(target))

    def _forget_open(self, last: int) -> None:
        for folder in self._state(last).parent.iterdir():
            if folder.name != self._state(last).name:
                shutil.rmtree(folder, ignore_errors=True)

    def _state(self, position: int) -> Path:
        return self._table.directory / "_open" / f"{position:012d}"


def _summary(directory: Path) -> dict[str, int | float | str]:
    """Of the latest window of each subscription."""
    if not directory.exists():
        return {"subscriptions": 0}
    columns = ["subscription", "window_start", "backlog", "oldest_age_seconds"]
    rows = ds.dataset(directory, format="parquet").to_table(columns=columns).to_pylist()
    latest: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["window_start"]):
        if row["backlog"] is not None:
            latest[row["subscription"]] = row
    return {
        "subscriptions": len(latest),
        "windows": len({row["window_start"] for row in rows}),
        "backlog": sum(row["backlog"] for row in latest.values()),
        "oldest age in seconds": max((row["oldest_age_seconds"] for row in latest.values()), default=0.0),
    }
