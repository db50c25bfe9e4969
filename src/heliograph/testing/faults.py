"""Calls that fail because a test wants them to."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import msgspec
from google.rpc.code_pb2 import Code

from heliograph.errors import HeliographError, InvalidArgument

CODES: dict[str, int] = {name: number for name, number in Code.items() if number}
"""gRPC's codes of failure (https://grpc.github.io/grpc/core/md_doc_statuscodes.html)."""

_FAILURES: dict[int, type[HeliographError]] = {
    number: type(name.title().replace("_", ""), (HeliographError,), {"code": number}) for name, number in CODES.items()
}
"""What is raised: queue clients see the name, Pub/Sub's the code."""


class Fault(msgspec.Struct):
    """An order to fail.

    Args:
        method: its short name, such as "Publish", or that of a queue command, such as "queue.publish".
        code: gRPC's number.
        message: what the caller is told.
        times: how many more calls; None = all.
    """

    method: str
    code: int
    message: str
    times: int | None


class Faults:
    """The orders that stand. Of those for one method the oldest is carried out first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._methods: set[str] = set()

    def serves(self, methods: Collection[str]) -> None:
        """See `server.hooks.Hooks`."""
        self._methods = {name.rpartition("/")[2] for name in methods}

    def fail(self, method: str, code: Any, *, times: int | None = 1, message: str = "") -> None:
        """Let the next `times` calls of a method fail before they do anything.

        Args:
            method: of Pub/Sub by its short name, such as "Publish" or "StreamingPull" (of that, the next streams to be
                opened), or a queue command, such as "queue.publish".
            code: gRPC's, as a number, a name ("UNAVAILABLE") or a `grpc.StatusCode`.
            times: how many calls; None = all until `clear`.
            message: what the caller is told; "" = that a test wanted it.

        Raises:
            InvalidArgument: no such method or code, or `times` below 1.
        """
        if method not in self._methods:
            raise InvalidArgument(f"There is no method {method!r}; there are {', '.join(sorted(self._methods))}")
        if times is not None and times < 1:
            raise InvalidArgument(f"times must be at least 1, not {times}")
        fault = Fault(method, code_number(code), message or f"A test wants {method} to fail", times)
        with self._lock:
            self._faults.append(fault)

    def pending(self) -> list[Fault]:
        """Those that have not been carried out yet, or not as often as ordered."""
        with self._lock:
            return [msgspec.structs.replace(fault) for fault in self._faults]

    def clear(self) -> None:
        """Nothing fails on order any more."""
        with self._lock:
            self._faults.clear()

    def before(self, method: str) -> None:
        """See `server.hooks.Hooks`.

        Raises:
            HeliographError: the call is to fail.
        """
        if not self._faults:
            return
        short = method.rpartition("/")[2]
        with self._lock:
            fault = next((fault for fault in self._faults if fault.method == short), None)
            if fault is None:
                return
            if fault.times is not None:
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
        raise _FAILURES[fault.code](fault.message)


def code_number(code: Any) -> int:
    """gRPC's number of a code of failure.

    Args:
        code: a number, a name or a `grpc.StatusCode`.

    Raises:
        InvalidArgument: there is no such code, or it is OK.
    """
    name = getattr(code, "name", code)
    number = CODES.get(name.upper()) if isinstance(name, str) else code
    if type(number) is not int or number not in CODES.values():
        raise InvalidArgument(f"{code!r} is not a code of failure; there are {', '.join(CODES)}")
    return number
