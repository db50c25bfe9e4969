"""`heliograph pipeline …`: the data pipeline on Spark: run its jobs, see what they have done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph.cli.failure import ExitCode, Failure, import_extra
from heliograph.cli.pipeline_run import DIRECTORY_DEFAULT, Directory, run_app, shown
from heliograph.cli.show import AsJson, age, print_json, print_table

if TYPE_CHECKING:
    from heliograph.spark.pipeline.job import Run

pipeline_app = typer.Typer(help="The data pipeline on Spark: run its jobs, see what they have done.")
pipeline_app.add_typer(
    run_app, name="run", no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}
)


@pipeline_app.command()
def plan(as_json: AsJson = False) -> None:
    """Tell which jobs there are, what each reads and writes.

    Example: heliograph pipeline plan
    """
    jobs = import_extra("heliograph.spark.pipeline.jobs", extra="spark", for_what="the pipeline").JOBS.values()
    if as_json:
        print_json([{"job": job.name, "does": job.does, "reads": job.reads, "writes": job.writes} for job in jobs])
        return
    print_table(
        ("job", "reads", "writes", "what it does"), [(job.name, job.reads, job.writes, job.does) for job in jobs]
    )


@pipeline_app.command()
def status(directory: Directory = DIRECTORY_DEFAULT, as_json: AsJson = False) -> None:
    """Tell what each job has done: its last run, rows in all, lag, and its last error.

    Example: heliograph pipeline status --json
    """
    found = _status(directory)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["job"],
            age(each["age_seconds"]) if each["runs"] else "never",
            f"{each['runs']:,}",
            f"{each['rows']:,}",
            f"{each['lag']:,}",
            each["state"],
            ", ".join(f"{key} {shown(value)}" for key, value in each["figures"].items()),
        )
        for each in found
    ]
    print_table(("job", "last run", "runs", "rows", "lag", "state", "what it found"), rows)
    for each in found:
        if each["last_error"]:
            print(f"{each['job']} failed {age(each['last_error_age_seconds'])} ago: {each['last_error']}")


@pipeline_app.command()
def report(
    directory: Directory = DIRECTORY_DEFAULT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page (default DIRECTORY/report.html).")
    ] = None,
) -> None:
    """Write an HTML page with what the jobs have done, and charts of their figures.

    Example: heliograph pipeline report --output pipeline.html
    """
    if not directory.is_dir():
        raise Failure(f"There is no pipeline in {directory}: run a job first", ExitCode.NOT_FOUND)
    jobs = import_extra("heliograph.spark.pipeline.jobs", extra="spark", for_what="the pipeline").JOBS
    made = import_extra("heliograph.spark.pipeline.report", extra="demo", for_what="the report")
    path = output or directory / "report.html"
    made.write_report(directory, jobs, path)
    print(f"Wrote {path}")


def _status(directory: Any) -> list[dict[str, Any]]:
    jobs = import_extra("heliograph.spark.pipeline.jobs", extra="spark", for_what="the pipeline").JOBS
    job = import_extra("heliograph.spark.pipeline.job", extra="spark", for_what="the pipeline")
    found = []
    for name in jobs:
        runs = job.runs(directory, name)
        last = runs[-1] if runs else None
        good, failed = job.last_run(runs, failed=False), job.last_run(runs, failed=True)
        found.append(
            {
                "job": name,
                "runs": len(runs),
                "age_seconds": _age_seconds(last),
                "seconds": last.seconds if last else 0,
                "rows": sum(run.rows for run in runs),
                "lag": good.lag if good else 0,
                "figures": good.figures if good else {},
                "remarks": good.remarks if good else [],
                "state": last.state if last else "",
                "error": last.error if last else "",
                "last_error": failed.error if failed else "",
                "last_error_age_seconds": _age_seconds(failed),
            }
        )
    return found


def _age_seconds(run: Run | None) -> float:
    return (time.time_ns() - run.started_ns) / 1e9 if run else 0
