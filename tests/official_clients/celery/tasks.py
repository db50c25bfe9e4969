"""The tasks of an application that uses Celery over Pub/Sub. Nothing here knows of Heliograph."""

import os
import time
from pathlib import Path

from celery import Celery

DIRECTORY = Path(os.environ["CELERY_CHECKS"])

app = Celery("tasks", broker="gcpubsub://projects/celery-checks", backend=f"file://{DIRECTORY}/results")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "ack_deadline_seconds": 10,
        "wait_time_seconds": 1,
        "retry_timeout_seconds": 10,
        "expiration_seconds": 86_400,
    },
    task_track_started=True,
)


def note(name, text):
    """A line of what happened, that outlives whoever wrote it."""
    with (DIRECTORY / name).open("a") as file:
        file.write(f"{text}\n")


@app.task
def add(x, y):
    return x + y


@app.task(bind=True, max_retries=3, default_retry_delay=0.2)
def succeeds_the_third_time(self, name):
    note(name, self.request.retries)
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries


@app.task
def when(name):
    note(name, time.time())


@app.task(acks_late=True, reject_on_worker_lost=True)
def dies_the_first_time(name):
    first = not (DIRECTORY / name).exists()
    note(name, os.getpid())
    if first:
        os._exit(1)  # as if the kernel had killed it
    return "done"


@app.task(acks_late=True)
def takes_longer_than_its_deadline(name):
    note(name, "began")
    time.sleep(14)  # a worker of Celery's own, with the real clock; its deadline is 10 s
    note(name, "ended")
    return "done"
