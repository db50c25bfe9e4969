"""The console's pipeline page: what each job is doing, in a table with small charts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from heliograph.page import Html, escape, small_chart
from heliograph.server.job_status import SECOND_NS, JobStatus

HEADS = ("Job", "State", "Rows", "Rows a second", "Lag", "Last run")

SIGNS = {"running": "▶", "idle": "◦", "done": "✓", "wrong": "!", "failed": "✕", "stopped": "■", "lost": "?"}
"""Beside the colour of a state, for those who do not see it."""

STYLE = """
body { max-width: 76rem; padding-top: 1.25rem; }
h1 { font-size: 1.6rem; }
.broker { margin: 0 0 1rem; }
h2 { font-size: 1rem; font-weight: 600; margin: 2rem 0 0; overflow-wrap: anywhere; }
table.jobs { width: 100%; margin-top: .5rem; table-layout: fixed; }
.jobs thead th { box-sizing: border-box; }
.jobs thead th:nth-child(1) { width: 23%; }
.jobs thead th:nth-child(2) { width: 14%; }
.jobs thead th:nth-child(3) { width: 21%; }
.jobs thead th:nth-child(4) { width: 12%; }
.jobs thead th:nth-child(5) { width: 15%; }
.jobs tbody { border-bottom: 1px solid var(--line); }
.jobs tbody td, .jobs tbody th { border-bottom: 0; padding-top: .7rem; font-weight: inherit; }
.jobs thead th { font-size: .85rem; font-weight: 600; color: var(--faint); border-bottom-width: 1px; }
.jobs .number { text-align: right; }
.jobs .name { font-weight: 600; overflow-wrap: anywhere; }
.jobs small { display: block; font-size: .85rem; color: var(--faint); font-weight: 400; overflow-wrap: anywhere; }
.jobs .told td { padding-top: 0; font-size: .9rem; overflow-wrap: anywhere; }
.told p { margin: 0 0 .4rem; }
.state { display: inline-block; padding: 0 .6rem; border-radius: 1rem; background: var(--tint); white-space: nowrap; }
.state.running { color: var(--blue); }
.state.done { color: var(--good); }
.state.failed, .state.lost, .state.wrong { color: var(--bad); background: var(--bad-tint); font-weight: 600; }
.chart { display: block; width: 100%; max-width: 9rem; height: 2.2rem; margin: .3rem 0 0 auto; overflow: visible; }
.chart polygon { fill: var(--blue); opacity: .14; }
.chart polyline { fill: none; stroke: var(--blue); stroke-width: 1.6; stroke-linejoin: round; }
.chart.lag polygon { fill: var(--bad); }
.chart.lag polyline { stroke: var(--bad); }
.notice { border-left: .3rem solid var(--blue); background: var(--tint); padding: .6rem 1rem; }
.notice.bad { border-color: var(--bad); background: var(--bad-tint); }
pre { background: var(--tint); padding: .8rem 1rem; overflow-x: auto; border-radius: .3rem; }
@media (max-width: 46rem) {
  body { padding: 1rem .8rem 3rem; }
  .jobs thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  .jobs, .jobs tbody, .jobs tr { display: block; }
  .jobs tbody { padding: .5rem 0; }
  .jobs tr.figures { display: grid; grid-template-columns: 1fr 1fr; gap: .3rem 1rem; }
  .jobs tbody td, .jobs tbody th { display: block; width: auto; min-width: 0; padding: .2rem 0; text-align: left; }
  .jobs tbody td.number { text-align: left; }
  .jobs .figures td[data-head]::before { content: attr(data-head); display: block; }
  .jobs .figures td[data-head]::before { font-size: .8rem; color: var(--faint); }
  .jobs tbody td.state-cell { text-align: right; }
  .chart { max-width: none; margin-left: 0; }
}
"""


def pipeline_page(jobs: Sequence[JobStatus], now_ns: int, address: str) -> Html:
    """The body of the page.

    Args:
        jobs: what is known, those of one pipeline side by side.
        now_ns: the broker's time.
        address: of the broker, as its reader has reached it.
    """
    if not jobs:
        return _nothing_yet(address)
    parts = [f"<p>{escape(_in_a_sentence(jobs, now_ns))}</p>"]
    for (host, directory), group in itertools.groupby(jobs, key=lambda job: (job.report.host, job.report.directory)):
        parts.append(f"<h2>{escape(directory)} <span class='faint'>on {escape(host)}</span></h2>")
        parts.append(_table(list(group), now_ns))
    parts.append("<p class='faint'>The same as JSON: <code>GET /api/v1/pipelines</code>.</p>")
    return Html("\n".join(parts))


def _nothing_yet(address: str) -> Html:
    server = escape(address)
    return Html(
        "<p class='notice'>No job of the data pipeline has reported to this broker yet.</p>\n"
        "<p>Jobs run on Spark, on this machine or another one, and tell their broker how they are doing. To start one:"
        "</p>\n"
        f"<pre>pip install 'heliograph[spark]'\nheliograph pipeline run archive --continuous --server {server}</pre>\n"
        "<p><code>heliograph pipeline plan</code> lists all jobs, <code>heliograph doctor</code> says whether a "
        "machine is ready for them.</p>"
    )


def _in_a_sentence(jobs: Sequence[JobStatus], now_ns: int) -> str:
    counts: dict[str, int] = {}
    for job in jobs:
        word = _state_word(job, now_ns)
        counts[word] = counts.get(word, 0) + 1
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}: {told}."


def _table(jobs: Sequence[JobStatus], now_ns: int) -> str:
    head = "".join(f'<th scope="col"{_number(name)}>{name}</th>' for name in HEADS)
    bodies = "".join(_job(job, now_ns) for job in jobs)
    return f'<table class="jobs"><thead><tr>{head}</tr></thead>{bodies}</table>'


def _number(head: str) -> str:
    return ' class="number"' if head in ("Rows", "Rows a second", "Lag") else ""


def _job(job: JobStatus, now_ns: int) -> str:
    report, kind = job.report, _state_kind(job, now_ns)
    ran, took = _last_run(job, now_ns)
    rate = f"{job.rows_per_second:,.0f}" if report.rows else "–"
    lag = "unknown" if report.lag is None else f"{report.lag:,}"
    state = f"{SIGNS[kind]} {_state_word(job, now_ns)}"
    figures = (
        f'<th scope="row"><span class="name">{escape(report.job)}</span>{_small(report.doing)}</th>'
        f'<td class="state-cell"><span class="state {kind}">{escape(state)}</span></td>'
        f'<td class="number" data-head="Rows">{job.rows:,}{_small(_batch(job, now_ns))}{_rows_chart(job)}</td>'
        f'<td class="number" data-head="Rows a second">{rate}</td>'
        f'<td class="number" data-head="Lag">{lag}{_lag_chart(job)}</td>'
        f'<td data-head="Last run">{escape(ran)}{_small(took)}</td>'
    )
    told = _told(job, now_ns)
    below = f'<tr class="told"><td colspan="{len(HEADS)}">{told}</td></tr>' if told else ""
    return f'<tbody id="job-{escape(report.job)}"><tr class="figures">{figures}</tr>{below}</tbody>'


def _rows_chart(job: JobStatus) -> Html:
    """Of what was done since the first point."""
    points = [(point.at_ns / SECOND_NS, float(point.rows - job.history[0].rows)) for point in job.history]
    return small_chart(points, f"Rows of {job.report.job} over time", kind="rows")


def _lag_chart(job: JobStatus) -> Html:
    points = [(at_ns / SECOND_NS, float(lag)) for at_ns, _, lag in job.history if lag is not None]
    return small_chart(points, f"Lag of {job.report.job} over time", kind="lag")


def _state_kind(job: JobStatus, now_ns: int) -> str:
    state = job.state(now_ns)
    return "wrong" if state == "done" and not job.report.is_good else state


def _state_word(job: JobStatus, now_ns: int) -> str:
    kind = _state_kind(job, now_ns)
    return "found a fault" if kind == "wrong" else kind


def _last_run(job: JobStatus, now_ns: int) -> tuple[str, str]:
    """When, and how long it took."""
    ago, took = (now_ns - job.reported_ns) / SECOND_NS, span(job.report.seconds)
    match job.state(now_ns):
        case "running":
            return "now", f"for {took}"
        case "lost":
            return f"heard of {_ago(ago)}", "killed, or cut off from this broker"
        case _:
            return _ago(ago), f"took {took}"


def _batch(job: JobStatus, now_ns: int) -> str:
    report = job.report
    if not report.batch_rows:
        return ""
    ago = (now_ns - job.reported_ns) / SECOND_NS + report.batch_seconds
    return f"last batch {report.batch_rows:,}, {_ago(ago)}"


def _told(job: JobStatus, now_ns: int) -> str:
    """What it found, and what went wrong."""
    report = job.report
    figures = ", ".join(f"{name} {_figure(value)}" for name, value in report.figures.items())
    lines = [f'<p class="faint">{escape(figures)}</p>'] if figures else []
    kind = "good" if report.is_good else "bad"
    lines += [f'<p class="{kind}">{escape(remark)}</p>' for remark in report.remarks]
    if report.error:
        lines.append(f'<p class="bad">{escape(report.error)}</p>')
    elif job.error:
        ago = _ago((now_ns - job.error_ns) / SECOND_NS)
        lines.append(f'<p class="faint">Last error, {ago}: {escape(job.error)}</p>')
    return "".join(lines)


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def _figure(value: int | float | str) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else value


def _ago(seconds: float) -> str:
    return "just now" if seconds < 1 else f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """Short: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(seconds, 0):.1f} s"
