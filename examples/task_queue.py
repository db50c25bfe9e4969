"""Video processing with a work queue: premium users first, three workers, retries, and a task that never works.

    python examples/task_queue.py                                   # a broker of its own, in this process
    python examples/task_queue.py --url http://localhost:8085       # the broker of `heliograph serve`

Every delay is a thousandth of what it says here; `--scale 1` makes it real.
"""

import argparse
import sys
import threading
import time

from heliograph import LocalBroker, Queue, QueueMessage

RETRY_DELAYS = [10, 60, 300]  # seconds
WAIT_SECONDS = 30  # that a worker waits for a task
DEADLINE_SECONDS = 300  # after which a task of a worker that is gone is another's
WORK_SECONDS = 2

codec_installed = threading.Event()  # until then nobody can process the video with the new codec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a server; without it, a broker in this process")
    parser.add_argument("--scale", type=float, default=0.001, help="of all delays (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=12, help="how many videos (default: %(default)s)")
    options = parser.parse_args()

    where = {"url": options.url} if options.url else {"broker": LocalBroker()}
    with Queue("videos", **where) as videos:
        videos.create(retry_delays=[seconds * options.scale for seconds in RETRY_DELAYS])
        publish(videos, options.tasks)
        workers = [
            threading.Thread(target=work, args=(f"worker {number}", where, options.scale)) for number in (1, 2, 3)
        ]
        for worker in workers:
            worker.start()
        retry_the_poison_task(videos, options.scale)
        for worker in workers:
            worker.join()
        report(videos)
        videos.delete()


def publish(videos: Queue, count: int) -> None:
    for number in range(1, count + 1):
        premium = number % 4 == 0
        task = {"video": number, "user": "premium" if premium else "free"}
        videos.publish(task, priority=9 if premium else 5, headers={"source": "web"}, dedup_id=f"video-{number}")
    videos.publish({"video": 666, "user": "free", "codec": "new"}, priority=5)
    say(f"published {count + 1} videos, premium users first")


def work(name: str, where: dict, scale: float) -> None:
    with Queue("videos", ack_deadline=DEADLINE_SECONDS, **where) as videos:
        for message in videos.consume(timeout=max(WAIT_SECONDS * scale, 3)):
            try:
                with message:  # acknowledged at the end, given back on an exception
                    process(name, message, scale)
            except ValueError as problem:
                say(f"{name}: video {message.message['video']} failed (retry {message.retry_count}): {problem}")


def process(name: str, message: QueueMessage, scale: float) -> None:
    task = message.message
    for percent in (50, 100):
        time.sleep(WORK_SECONDS * scale / 2)
        message.extend(DEADLINE_SECONDS)  # the client does that by itself, too
        if task.get("codec") == "new" and not codec_installed.is_set():
            raise ValueError("this codec is not known")
        if task["video"] % 5 == 0 and message.retry_count == 0:
            raise ValueError("the disk was full for a moment")
        say(f"{name}: video {task['video']} of a {task['user']} user, {percent} %")


def retry_the_poison_task(videos: Queue, scale: float) -> None:
    while not (letters := videos.dead_letters()):
        time.sleep(scale)
    for letter in letters:
        say(f"given up: video {letter.message['video']}, {letter.reason} after {letter.retry_count} retries")
    codec_installed.set()
    say(f"the codec is installed, and {videos.retry_dead_letters()} video is tried once more")


def say(line: str) -> None:
    # In one piece: print() writes the end of a line on its own, and another worker's line may come between.
    sys.stdout.write(line + "\n")


def report(videos: Queue) -> None:
    stats = videos.stats()
    say(f"processed {stats.acked_total}, failed {stats.nacked_total} times, left {stats.depth + stats.outstanding}")
    say(f"dead letters: {stats.dead_lettered_total} ever, {stats.dead_letters} now")
    say(f"average wait: {stats.avg_wait_time_ms:.0f} ms")


if __name__ == "__main__":
    main()
