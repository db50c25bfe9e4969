"""How fast a push subscription goes (protocol 1.13.3): numbers only."""

from __future__ import annotations

from heliograph.server.push.pace import WINDOW_MAX, Pace

MS = 1_000_000


def test_1_13_3_the_window_begins_with_one_and_doubles_with_each_round_that_succeeds() -> None:
    pace = Pace()
    windows = []
    for _ in range(5):
        windows.append(pace.window)
        for _ in range(pace.window):
            pace.succeeded()
    assert windows == [1, 2, 4, 8, 16]
    for _ in range(WINDOW_MAX):
        pace.succeeded()
    assert pace.window == WINDOW_MAX


def test_1_13_3_room_is_what_the_window_leaves() -> None:
    pace = Pace()
    for _ in range(3):
        pace.succeeded()
    assert [pace.room(outstanding, 0) for outstanding in (0, 3, 4, 9)] == [4, 1, 0, 0]


def test_1_13_3_the_pause_is_100_ms_and_doubles_up_to_a_minute() -> None:
    pace, now_ns = Pace(), 0
    pauses = []
    for _ in range(13):
        began_ns = now_ns + 1
        pace.failed(began_ns, began_ns)
        pauses.append((pace.resume_ns - began_ns) // MS)
        assert pace.room(0, pace.resume_ns - 1) == 0
        assert pace.room(0, pace.resume_ns) == 1
        now_ns = pace.resume_ns
    assert pauses == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 51200, 60000, 60000, 60000]


def test_1_13_3_a_success_ends_the_pause_and_the_next_one_is_short_again() -> None:
    pace = Pace()
    pace.failed(0, 10)
    pace.failed(20, 30)
    pace.succeeded()
    assert pace.room(0, 31) > 0
    pace.failed(40, 50)
    assert pace.resume_ns == 50 + 100 * MS


def test_1_13_3_requests_that_were_under_way_together_fail_as_one_and_halve_the_window_once() -> None:
    pace = Pace()
    for _ in range(15):
        pace.succeeded()
    for now_ns in (100, 101, 102):
        pace.failed(50, now_ns)
    assert (pace.window, pace.resume_ns) == (8, 100 + 100 * MS)
    pace.failed(100 + 100 * MS, 100 + 100 * MS)
    assert (pace.window, pace.resume_ns) == (4, 100 + 300 * MS)
