"""What the demonstration shows while it works: bars on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import itertools
import threading
import time
import types
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

LINE_EVERY_SECONDS = 20.0


class Step:
    """One step of the story. `advance` may be called from any thread and costs next to nothing.

    Args:
        title: what is being done.
        total: how many pieces there are; None = not known yet, or not countable.
    """

    def __init__(self, title: str, total: int | None = None) -> None:
        self.title = title
        self.total = total
        self.started = time.monotonic()
        self.seconds: float | None = None
        self.note = ""
        self._pieces = itertools.count(1)
        self.done = 0

    def advance(self) -> None:
        """One piece more."""
        self.done = next(self._pieces)  # a late writer may set it back by one for a moment; the next puts it right

    def reach(self, done: int) -> None:
        """So many pieces are done."""
        self.done = done

    def finish(self, note: str = "", at: float | None = None) -> None:
        """The step is over, or was over at an instant of `time.monotonic`."""
        self.seconds = (at or time.monotonic()) - self.started
        self.note = note
        if self.total is not None:
            self.done = self.total

    def elapsed(self) -> float:
        """Seconds since the step began, or that it took."""
        return time.monotonic() - self.started if self.seconds is None else self.seconds

    def count(self) -> str:
        """How much is done, in words; "" where nothing is counted."""
        if self.total is not None:
            return f"{self.done:,} of {self.total:,}"
        return f"{self.done:,}" if self.done else ""

    def line(self) -> str:
        """The step in one line of text."""
        count = self.count()
        if self.seconds is None:
            time_taken = f" after {self.elapsed():.0f} s" if count else f"{self.elapsed():.0f} s so far"
        else:
            time_taken = f"{' in' if count else 'done in'} {self.seconds:.1f} s"
        return f"{self.title}: {count}{time_taken}{f' ({self.note})' if self.note else ''}"


class Steps:
    """All steps, shown while they run; a context manager.

    Args:
        console: where.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps: list[Step] = []
        self._bars = _Bars(console) if console.is_terminal else None
        self._over = threading.Event()
        self._lines: threading.Thread | None = None

    def begin(self, step: Step) -> Step:
        """A step begins."""
        step.started = time.monotonic()
        self._steps.append(step)
        if self._bars is not None:
            self._bars.show(step)
        return step

    def finish(self, step: Step, note: str = "", at: float | None = None) -> None:
        """See `Step.finish`."""
        step.finish(note, at)
        if self._bars is None:
            self._console.print(step.line(), highlight=False)

    def __enter__(self) -> Steps:
        if self._bars is not None:
            self._bars.start()
        else:
            self._lines = threading.Thread(target=self._print_now_and_then, name="progress", daemon=True)
            self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._over.set()
        if self._bars is not None:
            self._bars.stop()
        if self._lines is not None:
            self._lines.join()

    def _print_now_and_then(self) -> None:
        while not self._over.wait(LINE_EVERY_SECONDS):
            for step in list(self._steps):
                if step.seconds is None:
                    self._console.print(step.line(), highlight=False)


class _Bars(Progress):
    """Bars that look at their steps whenever they are drawn."""

    def __init__(self, console: Console) -> None:
        self._shown: dict[TaskID, Step] = {}
        super().__init__(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[count]}", justify="right"),
            TextColumn("{task.fields[seconds]}", justify="right"),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            refresh_per_second=5,
        )

    def show(self, step: Step) -> None:
        """One bar more."""
        task = self.add_task(step.title, total=step.total, count="", seconds="", note="")
        self._shown[task] = step

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn."""
        for task, step in list(self._shown.items()):
            total, done = step.total, step.done
            if step.seconds is not None:
                total = done = step.total or 1
            seconds = f"{step.elapsed():.0f} s"
            self.update(task, completed=done, total=total, count=step.count(), seconds=seconds, note=step.note)
        yield from super().get_renderables()
