from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console

from heliograph.demo import progress
from heliograph.demo.progress import Step, Steps


class StandingClock:
    """In place of the module `time`: a busy machine may take a second for what takes none."""

    @staticmethod
    def monotonic() -> float:
        return 100.0


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "time", StandingClock)


def shown(*, terminal: bool) -> str:
    """Three steps: one that counts, one that learns its total late, one that counts nothing."""
    file = io.StringIO()
    with Steps(Console(file=file, force_terminal=terminal, width=100)) as steps:
        counted = steps.begin(Step("Count", 3))
        late = steps.begin(Step("Learn"))
        plain = steps.begin(Step("Wait"))
        for _ in range(3):
            counted.advance()
        late.reach(7)
        late.total = 9
        steps.finish(counted)
        steps.finish(late, at=late.started + 2)
        steps.finish(plain, "for Spark")
    return file.getvalue()


def test_anywhere_but_on_a_terminal_a_finished_step_is_one_plain_line() -> None:
    lines = re.sub(r"\d\.\d s", "T s", shown(terminal=False)).splitlines()
    assert lines == ["Count: 3 of 3 in T s", "Learn: 9 of 9 in T s", "Wait: done in T s (for Spark)"]


def test_on_a_terminal_the_bars_end_full(capfd: pytest.CaptureFixture[str]) -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(terminal=True))
    bars = {line.split("━")[0].strip(): line for line in text.replace("\r", "\n").splitlines() if "━" in line}
    assert re.search(r"3 of 3 +0 s", bars["✓ Count"])
    assert re.search(r"9 of 9 +2 s", bars["✓ Learn"])
    assert re.search(r"0 s +for Spark", bars["✓ Wait"])
    assert capfd.readouterr() == ("", "")


def test_a_long_step_says_now_and_then_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_SECONDS", 0.01)
    lines = Lines()
    with Steps(Console(file=lines, force_terminal=False)) as steps:
        step = steps.begin(Step("Count", 1_000))
        step.reach(20)
        lines.wait_for("Count: 20 of 1,000 after 0 s")


class Lines(io.StringIO):
    """A file that one can wait at."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            self._changed.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.getvalue(), 30)
