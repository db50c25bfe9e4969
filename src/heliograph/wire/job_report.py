"""What a job of the pipeline tells its broker about itself, as JSON over HTTP.

Both ends share this form: the job that sends it (`spark/pipeline/reporter.py`) cuts texts to these bounds, and the
broker refuses whatever goes beyond them (`server/pipelines.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

PATH = "/api/v1/pipelines"

JOB_LENGTH_MAX, HOST_LENGTH_MAX, DIRECTORY_LENGTH_MAX, TEXT_LENGTH_MAX = 100, 255, 1_000, 500
FIGURES_MAX, REMARKS_MAX = 20, 5

State = Literal["running", "idle", "done", "failed", "stopped"]
"""At work; between two runs; after its last one; after one that failed; ended by somebody."""

Text = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class JobReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job is doing.

    Args:
        job: its name.
        host: the machine that it runs on.
        directory: of the pipeline's tables there.
        state: see `State`.
        run: of the run, the same in all its reports and in none of another run; growing.
        seconds: that the run has taken.
        doing: what it is at; "" = nothing.
        rows: that the run has worked on.
        lag: how many more wait for it; None = nobody knows.
        batch_rows, batch_seconds: of the last batch, and how long ago it was done; 0 rows = there was none.
        figures, remarks: what the last run found.
        is_good: False = it found something that is wrong.
        error: why the run failed, in one line; "" = it did not.
        report_seconds: the next report comes after so long, at the latest; of a job that runs or is idle.
    """

    job: Annotated[str, msgspec.Meta(min_length=1, max_length=JOB_LENGTH_MAX)]
    host: Annotated[str, msgspec.Meta(max_length=HOST_LENGTH_MAX)]
    directory: Annotated[str, msgspec.Meta(max_length=DIRECTORY_LENGTH_MAX)]
    state: State
    run: Count
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e10)] = 0.0
    doing: Text = ""
    rows: Count = 0
    lag: Count | None = None
    batch_rows: Count = 0
    batch_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e10)] = 0.0
    figures: Annotated[dict[Text, int | float | Text], msgspec.Meta(max_length=FIGURES_MAX)] = {}
    remarks: Annotated[list[Text], msgspec.Meta(max_length=REMARKS_MAX)] = []
    is_good: bool = True
    error: Text = ""
    report_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0


def one_line(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """A text that fits into a report: in one line, cut to its beginning."""
    line = " ".join(text.split())
    return line if len(line) <= length_max else line[: length_max - 1] + "…"
