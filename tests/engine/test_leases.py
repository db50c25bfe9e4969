"""The expiry heap of the leases alone."""

from __future__ import annotations

from heliograph.engine.leases import Lease, Leases


def test_hand_outs_that_were_settled_do_not_fill_the_heap_while_one_is_outstanding() -> None:
    leases = Leases()
    leases.grant([1], Lease(1, 1_000_000, ""))
    for number in range(2, 10_000):
        leases.grant([number], Lease(number, 2_000_000, ""))
        leases.end([number])
    assert len(leases._heap) < 100
    assert leases.due(1_000_000) == [1]


def test_a_deadline_moved_back_and_forth_ends_the_lease_at_the_last_one() -> None:
    leases = Leases()
    leases.grant([1, 2], Lease(1, 100, "c"))
    for deadline_ns in (*range(200, 2_000), 150):
        leases.extend([1], deadline_ns)
    assert len(leases._heap) < 100
    assert (leases.due(149), leases.due(150)) == ([2], [1])
