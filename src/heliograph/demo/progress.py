"""What the demonstration shows while it works: bars on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import itertools
import threading
import time
import types
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

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

    def line(self) -> str:
        """The step in one line of text."""
        count = f"{self.done:,} of {self.total:,}" if self.total is not None else f"{self.done:,}" if self.done else ""
        if self.seconds is None:
            time_taken = f"{count and ' after '}{time.monotonic() - self.started:.0f} s" + ("" if count else " so far")
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
        self._bars = _Bars(self._steps, console) if console.is_terminal else None
        self._over = threading.Event()
        self._lines: threading.Thread | None = None

    def begin(self, step: Step) -> Step:
        """A step begins."""
        step.started = time.monotonic()
        self._steps.append(step)
        return step

    def finish(self, step: Step, note: str = "", at: float | None = None) -> None:
        """See `Step.finish`."""
        step.finish(note, at)
        if self._bars is None:
            self._console.print(step.line(), highlight=False)

    def say(self, text: str) -> None:
        """Something worth a line of its own."""
        self._console.print(text, highlight=False)

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

    def __init__(self, steps: list[Step], console: Console) -> None:
        self._shown: dict[int, TaskID] = {}
        self._of = steps
        super().__init__(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            refresh_per_second=5,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        for place, step in enumerate(list(self._of)):
            if place not in self._shown:
                self._shown[place] = self.add_task(step.title, total=step.total, note="")
            total = step.total if step.total is not None or step.seconds is None else max(step.done, 1)
            done = total if step.seconds is not None else step.done
            self.update(self._shown[place], completed=done, total=total, note=step.note)
        yield from super().get_renderables()
