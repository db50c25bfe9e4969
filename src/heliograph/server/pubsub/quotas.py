"""How many resources there may be (protocol 1.18)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from heliograph.errors import ResourceExhausted


class Quota:
    """Of one kind of resource, for each owner: a project, or a topic.

    What is created here is counted as it comes; what goes is not. So where the count has reached the maximum, and only
    there, everything is counted afresh.

    Args:
        what: how the error calls the resources.
        maximum: for each owner.
        count: how many there are of an owner.
    """

    def __init__(self, what: str, maximum: int, count: Callable[[str], int]) -> None:
        self._what = what
        self._maximum = maximum
        self._count = count
        self._counted: dict[str, int] = {}

    @contextmanager
    def room(self, owner: str) -> Iterator[None]:
        """Create one more within this block; it counts unless the block fails.

        Raises:
            ResourceExhausted: there are as many as may be.
        """
        number = self._counted.get(owner)
        if number is None or number >= self._maximum:
            number = self._count(owner)
        if number >= self._maximum:
            raise ResourceExhausted(f"{owner} has the maximum of {self._maximum} {self._what}.")
        self._counted[owner] = number + 1
        try:
            yield
        except BaseException:
            self._counted[owner] -= 1
            raise


def in_project(names: Callable[[], list[str]], collection: str) -> Callable[[str], int]:
    """Counts the resources of a project (`projects/p`) among all `names`."""

    def count(project: str) -> int:
        prefix = f"{project}/{collection}/"
        return sum(name.startswith(prefix) for name in names())

    return count
