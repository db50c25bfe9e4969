"""Flights and files for the tests of the demonstration."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec

from heliograph.demo.flights import COLUMNS, Flight

FLIGHT = Flight(
    row=1,
    leg=1,
    year=2013,
    month=1,
    day=1,
    dep_time=517,
    sched_dep_time=515,
    dep_delay=2,
    arr_time=830,
    sched_arr_time=819,
    arr_delay=11,
    carrier="UA",
    flight=1545,
    tailnum="N14228",
    origin="EWR",
    dest="IAH",
    air_time=227,
    distance=1400,
    hour=5,
    minute=15,
    time_hour="2013-01-01T10:00:00Z",
)
CANCELLED = msgspec.structs.replace(
    FLIGHT, row=2, leg=2, dep_time=None, dep_delay=None, arr_time=None, arr_delay=None, air_time=None
)
LATE = msgspec.structs.replace(FLIGHT, row=3, leg=3, sched_dep_time=2315, dep_time=30, dep_delay=75)


def flight(row: int, **changes: object) -> Flight:
    """A flight that differs from `FLIGHT` as told."""
    return msgspec.structs.replace(FLIGHT, row=row, **changes)


def text_of(*flights: Flight, columns: tuple[str, ...] = COLUMNS) -> str:
    """The flights as the original file writes them."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for each in flights:
        values = (getattr(each, name) for name in columns)
        writer.writerow("NA" if value is None else value for value in values)
    return file.getvalue()


def write_csv(path: Path, *flights: Flight, columns: tuple[str, ...] = COLUMNS) -> Path:
    """A CSV file of the flights."""
    path.write_text(text_of(*flights, columns=columns), "utf-8")
    return path
