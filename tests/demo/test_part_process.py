from __future__ import annotations

import threading
import time

import msgspec

from heliograph.demo.part_process import PartProcess


class Counting:
    """Counts to what it is told to expect; its task is a number at which it fails."""

    def __init__(self, task: bytes) -> None:
        self.complete = threading.Event()
        self.completed = 0.0
        self._fails_at = int(task)
        self._expected = 0
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Nothing to do before something is expected."""

    def expect(self, count: int) -> None:
        if self._fails_at <= count:
            self._failure = ValueError(f"cannot count\nto {count}")
            return
        self._expected = count
        self.completed = time.monotonic()
        self.complete.set()

    def done(self) -> int:
        return self._expected

    def failure(self) -> BaseException | None:
        return self._failure

    def result(self) -> list[int]:
        return list(range(1, self._expected + 1))

    def stop(self) -> None:
        """Nothing runs."""


class Ending(Counting):
    """Ends its process."""

    def start(self) -> None:
        raise SystemExit(0)


def part(make: type[Counting], fails_at: int, progress: list[int]) -> PartProcess[list[int]]:
    return PartProcess("counter", make, str(fails_at).encode(), list[int], progress.append)


def wait_for_failure(counter: PartProcess[list[int]]) -> BaseException:
    waited = time.monotonic() + 30
    while (failure := counter.failure()) is None and time.monotonic() < waited:
        counter.complete.wait(0.01)
    assert failure is not None
    return failure


def test_a_part_brings_its_result_from_its_process() -> None:
    progress: list[int] = []
    counter = part(Counting, 10, progress)
    counter.start()
    counter.expect(3)
    assert counter.complete.wait(30)
    assert (counter.result(), progress[-1], counter.failure()) == ([1, 2, 3], 3, None)
    assert 0 < counter.completed <= time.monotonic()
    counter.stop()


def test_a_part_that_fails_says_why_in_one_line() -> None:
    counter = part(Counting, 2, [])
    counter.start()
    counter.expect(3)
    assert str(wait_for_failure(counter)) == "ValueError: cannot count to 3"
    assert not counter.complete.is_set()
    counter.stop()


def test_a_process_that_ends_before_its_time_is_a_failure() -> None:
    counter = part(Ending, 2, [])
    counter.start()
    assert "ended before its time" in str(wait_for_failure(counter))
    counter.expect(3)
    counter.stop()


def test_a_result_of_another_type_is_a_failure_and_no_silence() -> None:
    counter = PartProcess("counter", Counting, b"10", dict[str, int], lambda _: None)
    counter.start()
    counter.expect(3)
    assert isinstance(wait_for_failure(counter), msgspec.ValidationError)
    counter.stop()


def test_a_part_that_is_stopped_ends_its_process() -> None:
    counter = part(Counting, 10, [])
    counter.start()
    counter.stop()
    assert not counter._process.is_alive()
