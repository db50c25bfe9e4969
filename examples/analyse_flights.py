# %% [markdown]
# # Flights go through a broker, and Spark looks at them
#
# The flights that left New York City in 2013 are published, each as a message. Then they are read in three ways: as a
# table, as a stream with windows, and as a work queue whose messages are acknowledged. What was found out goes back to
# the broker.
#
# It is a script and a notebook: `python examples/analyse_flights.py`, or cell by cell in an editor that knows `# %%`.
# It needs `pip install 'heliograph[demo]'` and takes about a minute, most of which Spark needs to get going.

# %%
import argparse
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from concurrent.futures import wait
from datetime import datetime
from pathlib import Path

import pandas as pd
import plotly.express as px
from google.cloud import pubsub_v1
from pyspark.sql import functions as sf

from heliograph.demo.flights import installed_file
from heliograph.spark.session import create_session

parser = argparse.ArgumentParser(description="Publish flights, analyse them with Spark, publish what was found.")
parser.add_argument("--server", help="a broker's address; without it, one is started for this run")
parser.add_argument("--flights", type=int, default=20_000, help="how many; there are 336776 (default: %(default)s)")
parser.add_argument("--project", default=f"flights-{datetime.now():%Y%m%d-%H%M%S}", help="of the topics (default: new)")
parser.add_argument("--chart", type=Path, default=Path("flights.html"), help="where it goes (default: %(default)s)")
options = parser.parse_args([] if "ipykernel" in sys.modules else None)


def show(title: str, frame: pd.DataFrame) -> None:
    """A table for people."""
    print(f"\n{title}\n\n{frame.to_string(index=False)}", flush=True)


# %% [markdown]
# ## A broker
#
# Usually there is one already, started with `heliograph serve --data-dir …`: name it with `--server`. Otherwise this
# cell starts one that keeps nothing. All that follows knows of it is its address: Google's client reads that from
# `PUBSUB_EMULATOR_HOST`, and so does the Spark source.


# %%
def start_broker() -> str:
    """Its address, on a free port; it ends with this script."""
    command = [sys.executable, "-m", "heliograph", "serve", "--store", "memory", "--port", "0"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    atexit.register(broker.wait)
    atexit.register(broker.terminate)
    for line in broker.stdout:
        if line.startswith("Server started, listening on "):
            return f"127.0.0.1:{line.split()[-1]}"
    raise SystemExit("The broker did not start; it says why above")


address = options.server.removeprefix("http://") if options.server else start_broker()
os.environ["PUBSUB_EMULATOR_HOST"] = address
print(f"The broker is at http://{address}")

# %% [markdown]
# ## Publishing, with Google's own client
#
# A topic is a log. It keeps messages for as long as its retention says, so that queries can read it again; and it
# delivers them to its subscriptions. The subscription `very-late` takes what its filter lets through, and holds it
# until somebody acknowledges it.

# %%
TOPIC, DAILY, AIRLINES = (f"projects/{options.project}/topics/{name}" for name in ("flights", "daily", "airlines"))
VERY_LATE = f"projects/{options.project}/subscriptions/very-late"
DAY = {"seconds": 86_400}

flights = pd.read_csv(installed_file(), nrows=options.flights)
settings = pubsub_v1.types.BatchSettings(max_messages=1_000, max_bytes=1_000_000, max_latency=0.05)
with pubsub_v1.PublisherClient(batch_settings=settings) as publisher, pubsub_v1.SubscriberClient() as subscriber:
    for topic in (TOPIC, DAILY, AIRLINES):
        publisher.create_topic(request={"name": topic, "message_retention_duration": DAY})
    late_only = {"name": VERY_LATE, "topic": TOPIC, "filter": 'attributes.delay = "very late"'}
    subscriber.create_subscription(request=late_only)

    published = [
        publisher.publish(
            TOPIC, json.dumps(flight).encode(), delay="very late" if (flight["dep_delay"] or 0) > 180 else "bearable"
        )
        for flight in flights.astype(object).where(flights.notna(), None).to_dict("records")
    ]
    wait(published)
print(f"Published {len(published):,} flights, the last one as message {published[-1].result()}")

# %% [markdown]
# ## The topic as a table
#
# `spark.read.format("heliograph")` is all: no jars, no configuration. A row is a message; `data` is what was published.
# The columns are named in docs/spark.md.

# %%
spark = create_session("analyse flights", brief=True)

SCHEMA = (
    "carrier STRING, flight INT, origin STRING, dest STRING, year INT, month INT, day INT, hour INT, minute INT, "
    "dep_delay DOUBLE, arr_delay DOUBLE, distance INT"
)
messages = spark.read.format("heliograph").options(topic=TOPIC).load()
messages.printSchema()
messages.selectExpr(
    "message_id", "publish_time", f"from_json(CAST(data AS STRING), '{SCHEMA}') AS flight"
).createOrReplaceTempView("published")
spark.sql("CREATE OR REPLACE TEMPORARY VIEW flights AS SELECT flight.* FROM published")

# %% [markdown]
# From here on it is SQL. A flight without a delay never left: it was cancelled.

# %%
airlines = spark.sql("""
    SELECT carrier, count(*) AS flights, count(*) - count(dep_delay) AS cancelled,
           round(avg(dep_delay), 2) AS mean_delay, round(avg(CAST(dep_delay > 60 AS INT)) * 100, 2) AS late_percent
    FROM flights GROUP BY carrier ORDER BY mean_delay DESC
""").toPandas()
show("Airlines, by the mean delay of their departures in minutes", airlines)

# %% [markdown]
# Delays pile up over the day: who wants to be in time leaves early.

# %%
hours = spark.sql("""
    SELECT hour, count(*) AS flights, round(avg(dep_delay), 2) AS mean_delay
    FROM flights GROUP BY hour HAVING count(dep_delay) > 0 ORDER BY hour
""").toPandas()
show("Hours of scheduled departure", hours)

# %%
routes = spark.sql("""
    SELECT origin, dest, count(arr_delay) AS arrivals, round(avg(arr_delay), 2) AS mean_delay
    FROM flights GROUP BY origin, dest HAVING count(arr_delay) >= 20 ORDER BY mean_delay DESC, origin, dest LIMIT 10
""").toPandas()
show("The ten worst routes with at least twenty arrivals, by the mean delay of arrivals", routes)

# %% [markdown]
# ## The topic as a stream, into another topic
#
# The same options after `readStream`, and the query goes on with what is published later. Here it takes what is there
# in micro-batches of 5,000 messages, and ends (`availableNow`).
#
# Days are windows over the scheduled time of departure, and a window is published when it is over. When is it over?
# Flights do not come in the order of their schedule: cancelled ones stand at the end of their day. The watermark of one
# day says how late a flight may be; whatever comes later than that is left out. So the last two days stay open here:
# nothing has come yet that would close them.
#
# What the query writes is there exactly once, also if it is killed in the middle and started again with its checkpoint.

# %%
checkpoints = Path(tempfile.mkdtemp(prefix="analyse-flights-"))

stream = (
    spark.readStream.format("heliograph")
    .options(topic=TOPIC, startingOffsets="earliest", maxMessagesPerTrigger=5_000, consumer="daily")
    .load()
    .selectExpr(f"from_json(CAST(data AS STRING), '{SCHEMA}') AS flight")
    .selectExpr("flight.*", "make_timestamp(flight.year, flight.month, flight.day, flight.hour, 0, 0) AS scheduled")
)
days = (
    stream.withWatermark("scheduled", "1 day")
    .groupBy(sf.window("scheduled", "1 day"), "origin")
    .agg(sf.count("*").alias("flights"), sf.round(sf.avg("dep_delay"), 2).alias("mean_delay"))
    .selectExpr("CAST(date(window.start) AS STRING) AS day", "origin", "flights", "mean_delay")
)
query = (
    days.selectExpr("to_json(struct(*)) AS data", "map('day', day) AS attributes", "origin AS ordering_key")
    .writeStream.format("heliograph")
    .options(topic=DAILY, checkpointLocation=checkpoints / "daily")
    .outputMode("append")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(f"\nThe stream took {len(query.recentProgress)} micro-batches")

daily = spark.read.format("heliograph").options(topic=DAILY).load()
daily = daily.selectExpr(
    "from_json(CAST(data AS STRING), 'day STRING, origin STRING, flights INT, mean_delay DOUBLE') AS d"
)
daily = daily.select("d.*").groupBy("day").pivot("origin", ["EWR", "JFK", "LGA"]).agg(sf.first("mean_delay"))
show("Mean delay of each day that is over, as the topic `daily` has it", daily.orderBy("day").toPandas())

# %% [markdown]
# ## The subscription as a work queue
#
# Everybody reads a topic's log without regard to others. Of a subscription each message goes to one consumer, which
# acknowledges it. The source claims messages, and acknowledges them once what became of them is durable; so a query
# that is killed in between gets the same ones again, and the backlog does reach zero.


# %%
def waiting() -> int:
    """Messages of the subscription that nobody has acknowledged."""
    with urllib.request.urlopen(f"http://{address}/api/v1/statistics?subscription={VERY_LATE}") as answer:
        (found,) = json.load(answer)["subscriptions"]
    return found["ready"] + found["outstanding"]


print(f"\nBefore: {waiting():,} messages wait")
late = spark.readStream.format("heliograph").options(subscription=VERY_LATE, consumer="analysis").load()
(
    late.selectExpr(f"from_json(CAST(data AS STRING), '{SCHEMA}') AS flight", "delivery_attempt")
    .selectExpr("flight.*", "delivery_attempt")
    .writeStream.format("parquet")
    .options(path=checkpoints / "very-late", checkpointLocation=checkpoints / "queue")
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
print(f"After:  {waiting():,} messages wait")
worst = spark.read.parquet(str(checkpoints / "very-late")).orderBy(sf.desc("dep_delay"), "carrier", "flight").limit(5)
show("The latest departures of all", worst.select("carrier", "flight", "origin", "dest", "dep_delay").toPandas())

# %% [markdown]
# ## Back to the broker
#
# A table goes into a topic as easily: one message a row. Whoever subscribes to it, in whatever language, gets the news.

# %%
(
    spark.createDataFrame(airlines)
    .selectExpr("to_json(struct(*)) AS data", "map('carrier', carrier) AS attributes")
    .write.format("heliograph")
    .options(topic=AIRLINES)
    .mode("append")
    .save()
)
print(f"\nPublished {len(airlines)} airlines to {AIRLINES}")

# %% [markdown]
# ## A picture

# %%
chart = px.bar(
    hours,
    x="hour",
    y="mean_delay",
    hover_data=["flights"],
    title=f"Mean delay at departure of {len(published):,} flights",
    labels={"hour": "scheduled hour of departure (local time)", "mean_delay": "minutes"},
    template="plotly_white",
)
chart.write_html(options.chart)
print(f"The chart is {options.chart}")

# %% [markdown]
# A query that is to go on another day keeps its checkpoint. These are done.

# %%
spark.stop()
shutil.rmtree(checkpoints)
