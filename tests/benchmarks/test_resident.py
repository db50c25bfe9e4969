from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.resident import PROC, Resident

HELD_BYTES = 50_000_000


@pytest.mark.skipif(not PROC.is_dir(), reason="memory of other processes is read from /proc")
def test_memory_of_what_a_process_started_counts_for_it_and_is_remembered_at_its_peak() -> None:
    program = f"held = bytearray({HELD_BYTES}); print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        resident = Resident({"all": os.getpid(), "child": child.pid})
        resident.look()
        child.communicate(b"\n")
    resident.look()
    peaks = resident.peaks_bytes
    assert peaks["child"] >= HELD_BYTES
    assert peaks["all"] >= peaks["child"] + HELD_BYTES // 10  # with this process, which is larger than that
    assert resident.peak_bytes == peaks["all"] + peaks["child"]
