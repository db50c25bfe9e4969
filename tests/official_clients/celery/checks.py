"""What applications do with Celery over `gcpubsub://`, with a worker of its own processes, against the broker at
PUBSUB_EMULATOR_HOST. One line of JSON per check on standard output: {"check": NAME, "outcome": "passed" | "failed",
"reason": TEXT}."""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DIRECTORY = Path(tempfile.mkdtemp(prefix="celery-checks-"))
(DIRECTORY / "results").mkdir()
os.environ["CELERY_CHECKS"] = str(DIRECTORY)

import tasks  # noqa: E402  # reads the variable
from kombu import Connection, Exchange, Queue  # noqa: E402

WAIT_SECONDS = 40


def lines(name):
    return (DIRECTORY / name).read_text().splitlines()


def new_name():
    return uuid.uuid4().hex


def many_tasks():
    results = [tasks.add.delay(number, number) for number in range(50)]
    assert [result.get(WAIT_SECONDS) for result in results] == [2 * number for number in range(50)]


def retries():
    name = new_name()
    assert tasks.succeeds_the_third_time.delay(name).get(WAIT_SECONDS) == 2
    assert lines(name) == ["0", "1", "2"]


def countdown():
    name, began = new_name(), time.time()
    tasks.when.apply_async((name,), countdown=3).get(WAIT_SECONDS)
    (ran,) = lines(name)
    assert 3 <= float(ran) - began < 20, float(ran) - began


def acks_late():
    name = new_name()
    assert tasks.dies_the_first_time.delay(name).get(WAIT_SECONDS) == "done"
    assert len(lines(name)) == 2


def longer_than_its_deadline():
    name = new_name()
    assert tasks.takes_longer_than_its_deadline.delay(name).get(WAIT_SECONDS) == "done"
    time.sleep(12)  # a second delivery would come within one more deadline
    assert lines(name) == ["began", "ended"]


def kombu_queue():
    """kombu alone: declare, publish, get, acknowledge; a fanout exchange reaches every queue."""
    options = tasks.app.conf.broker_transport_options
    with Connection("gcpubsub://projects/kombu-checks", transport_options=options) as connection:
        channel = connection.channel()
        direct = Exchange("orders", type="direct")
        queue = Queue("billing", exchange=direct, routing_key="billing")(channel)
        queue.declare()
        queue.declare()  # as every application does that starts again
        producer = connection.Producer(channel)
        for number in range(3):
            producer.publish({"n": number}, exchange=direct, routing_key="billing")
        producer.publish({"n": 9}, exchange=direct, routing_key="another")
        received = []
        while len(received) < 3:
            message = queue.get()
            if message is not None:
                received.append(message.payload["n"])
                message.ack()
        assert sorted(received) == [0, 1, 2]
        assert queue.get() is None


CHECKS = {
    "tasks and their results": many_tasks,
    "retries": retries,
    "countdown": countdown,
    "acks_late: a task whose process dies runs again": acks_late,
    "a task that takes longer than its deadline runs once": longer_than_its_deadline,
    "kombu: declare, publish, get": kombu_queue,
}


def outcome(check):
    try:
        CHECKS[check]()
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
        where = "".join(traceback.format_list(frames))
        return {"check": check, "outcome": "failed", "reason": f"{error!r}\n{where}"}
    return {"check": check, "outcome": "passed", "reason": ""}


def main():
    wanted = sys.argv[1:] or list(CHECKS)
    with (DIRECTORY / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "4", "--loglevel", "INFO"],
            stdout=log,
            stderr=log,
        )
        try:
            with ThreadPoolExecutor(len(wanted)) as pool:
                for result in pool.map(outcome, wanted):
                    if result["outcome"] == "failed":
                        result["reason"] += (DIRECTORY / "worker.log").read_text()[-3000:]
                    print(json.dumps(result), flush=True)
        finally:
            worker.terminate()
            try:
                worker.wait(20)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
    os._exit(0)  # gRPC's threads of a connection that a failed check left open


main()
