from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heliograph.demo import report
from heliograph.demo.balance import AirlineBalance, Balance
from heliograph.demo.charts import hours_chart, waits_chart
from heliograph.demo.figures import HourOfDay
from heliograph.demo.latency import percentiles
from heliograph.demo.outcome import Outcome, Throughput
from heliograph.demo.report import page as page_from
from heliograph.demo.report import print_tables, seen
from heliograph.demo.report import write_page as write_page_from

HOURS = [HourOfDay("", 6, 400, 2, 1.5), HourOfDay("", 19, 300, 4, 24.0), HourOfDay("", 23, 1, 1, None)]
WAITS = {9: percentiles([10_000_000] * 3), 0: percentiles([2_000_000_000] * 5)}


def airline(carrier: str, *, adds_up: bool = True, flights: int = 1_000) -> AirlineBalance:
    return AirlineBalance(
        carrier=carrier,
        flights=flights,
        published=flights,
        archived=flights,
        acknowledged=flights,
        queued=8,
        worked=5,
        dead=3,
        cancelled=3,
        adds_up=adds_up,
    )


def outcome(**changes: Any) -> Outcome:
    whole: dict[str, Any] = {
        "balance": Balance([airline("DL"), airline("UA")], []),
        "throughput": [Throughput("published", 2_000, 0.5)],
        "latency": {"publish() to callback": percentiles([7_000_000])},
        "hours": HOURS,
        "waits": WAITS,
        "handling_seconds": 0.03,
        "aircraft": 20,
        "legs_checked": 1_990,
        "repeated": {"ordered deliveries": 0, "publishes": 0},
        "failures_by_error": {"TypeError: <no time>": 12},
        "broker_killed": False,
        "seconds": 42.0,
        "machine": "2 cores",
    }
    return Outcome(**whole | changes)


def page(of: Outcome) -> str:
    return page_from(of, "of <a file>")


def write_page(of: Outcome, path: Path) -> None:
    write_page_from(of, path, "of a file")


def printed(of: Outcome) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_tables(console, of)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_tables_fit_into_eighty_columns_with_nothing_cut() -> None:
    latency = {"publish time to ordered callback, all at once": percentiles([99_999_000_000] * 336_776)}
    text = printed(outcome(balance=Balance([airline("UA", adds_up=False, flights=336_776)], []), latency=latency))
    assert max(map(len, text.splitlines()[:12])) <= 80
    assert "…" not in text


def test_the_balance_has_a_line_for_all() -> None:
    assert re.search(r"all +2,000 +2,000 +2,000 +2,000 +16 +10 +6 +6", printed(outcome()))


def test_a_balance_that_adds_up_says_so() -> None:
    assert "The balance adds up." in printed(outcome())


def test_an_airline_that_does_not_add_up_is_marked() -> None:
    text = printed(outcome(balance=Balance([airline("DL"), airline("UA", adds_up=False)], ["UA: it differs"])))
    assert "UA ✗" in text
    assert "DL ✗" not in text
    assert "adds up" not in text


def test_throughput_and_latency_are_printed() -> None:
    text = printed(outcome())
    assert re.search(r"published +2,000 +0\.5 +4,000", text)
    assert re.search(r"publish\(\) to callback +7\.0 +7\.0 +7\.0 +1", text)


def test_the_page_needs_no_network() -> None:
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", page(outcome()))


def test_the_page_has_both_charts_with_titles_and_units() -> None:
    text = page(outcome())
    for part in (
        "Flights and mean delay by hour of day",
        "Wait in the work queue by priority",
        "scheduled hour of departure (local time)",
        "seconds in the queue before a worker first took the flight",
    ):
        assert part in text


def test_texts_from_outside_are_escaped() -> None:
    text = page(outcome(balance=Balance([], ["<b>differs</b>"])))
    assert "TypeError: &lt;no time&gt;" in text
    assert "Flights of &lt;a file&gt;, 0 airlines" in text
    assert "&lt;b&gt;differs&lt;/b&gt;" in text


def test_what_was_seen_is_told_from_the_figures() -> None:
    text = page(outcome())
    assert "The mean delay is least in the hour from 6:00 (1.5 minutes) and greatest in the hour from 19:00" in text
    assert "priority 9 were taken within 0.01 s, half of those of priority 0 within 2.00 s. The workers took" in text


def test_a_queue_that_was_never_long_is_not_praised() -> None:
    text = page(outcome(waits={9: percentiles([5_000_000]), 0: percentiles([6_000_000])}))
    assert "hardly ever long enough for priorities to matter" in text


def test_a_crash_is_told() -> None:
    assert any("SIGKILL" in sentence for sentence in seen(outcome(broker_killed=True)))


def test_repetitions_are_told() -> None:
    assert any("3 ordered deliveries" in sentence for sentence in seen(outcome(repeated={"ordered deliveries": 3})))


def test_a_run_without_a_late_flight_has_a_page() -> None:
    assert "Nothing was queued." in page(outcome(waits={}))


def test_an_hour_in_which_nothing_left_leaves_a_gap() -> None:
    assert list(hours_chart(HOURS).data[1].y) == [1.5, 24.0, None]


def test_the_highest_priority_stands_first() -> None:
    assert [box.y[0].split(":")[0] for box in waits_chart(WAITS).data] == ["9", "0"]


def test_the_page_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_page(outcome(), path)
    assert path.read_text("utf-8").startswith("<!doctype html>")


def test_a_page_that_cannot_be_finished_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", "utf-8")

    def fail(_self: Path, _target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(report.Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        write_page(outcome(), path)
    assert (path.read_text("utf-8"), [path]) == ("old", list(tmp_path.iterdir()))
