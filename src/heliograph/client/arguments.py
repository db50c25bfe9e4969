"""What a caller may pass: each check gives the value back in the form that the rest works with, or says what is wrong.

Every error is an `InvalidArgument` (code 3) that names the argument; nothing has changed when it is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.engine.limits import check_text
from heliograph.engine.message import NO_ATTRIBUTES
from heliograph.engine.settings import SECOND_NS
from heliograph.errors import InvalidArgument

S = TypeVar("S", bound=msgspec.Struct)

COUNT_MAX = 2**31 - 1  # of messages: what fits the protocol's int32
BYTES_MAX = 2**63 - 1  # what fits its int64


def name_of(value: object, what: str) -> str:
    """A name: a string with something in it."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {type(value).__name__}")
    if not value:
        raise InvalidArgument(f"{what} must not be empty")
    check_text(value, what)
    return value


def count_of(value: object, what: str, minimum: int = 1, maximum: int = COUNT_MAX) -> int:
    """A whole number within bounds."""
    if type(value) is not int:
        raise InvalidArgument(f"{what} must be an integer, not {type(value).__name__}")
    if not minimum <= value <= maximum:
        raise InvalidArgument(f"{what} must be between {minimum} and {maximum}")
    return value


def number_of(value: object, what: str, minimum: float, maximum: float, unit: str) -> float:
    """A number, whole or not, within bounds. The error reads as the specs have it: `Ack deadline must be between 0 and
    600 seconds`."""
    # not a number is not within any bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise InvalidArgument(f"{what} must be between {minimum:.12g} and {maximum:.12g} {unit}")
    return value


def seconds_of(value: object, what: str, minimum: float, maximum: float) -> float:
    """A duration: plain seconds within bounds."""
    return number_of(value, what, minimum, maximum, "seconds")


def nanoseconds(seconds: float) -> int:
    """Seconds as nanoseconds; what is more than nothing stays so."""
    return max(round(seconds * SECOND_NS), 1) if seconds else 0


def broker_of(value: object) -> Broker:
    """A broker: an object that has a broker's operations."""
    if isinstance(value, type) or not callable(getattr(value, "create_queue", None)):
        raise InvalidArgument(f"A broker is wanted, not {value!r}")
    return value  # type: ignore[return-value]  # it has the operations; the rest of the protocol is typing's


def flag_of(value: object, what: str) -> bool:
    """True or False, and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} must be True or False, not {type(value).__name__}")
    return value


def data_of(value: object) -> bytes:
    """A payload, as bytes that nobody else can change."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(f"Message data must be bytes, not {type(value).__name__}")


def attributes_of(value: object) -> Mapping[str, str]:
    """Attributes, as a mapping of our own. Keys and values are checked where the limits are."""
    if not value and (value is None or isinstance(value, Mapping)):
        return NO_ATTRIBUTES
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"Message attributes must be a mapping, not {type(value).__name__}")
    return dict(value)


def ordering_key_of(value: object) -> str:
    """An ordering key; None and "" mean that there is none."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidArgument(f"Ordering key must be a string, not {type(value).__name__}")
    return value


def struct_of(given: dict[str, Any], kind: type[S]) -> S:
    """Keyword arguments as a struct; what is unknown or out of bounds is refused."""
    unknown = given.keys() - set(kind.__struct_fields__) if given else set()
    if unknown:
        raise InvalidArgument(f"There is no such option: {', '.join(sorted(unknown))}")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(str(error)) from None


def snake_case(name: str) -> str:
    """`maxMessages` as `max_messages`; what is in snake case already stays."""
    if name.islower():
        return name
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def named(values: Mapping[Any, Any], known: frozenset[str], what: str, aliases: Mapping[str, str]) -> dict[str, Any]:
    """The entries of a mapping whose names may be spelled either way, by their names in snake case.

    Raises:
        InvalidArgument: a name that is not known, or given twice.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = snake_case(key) if isinstance(key, str) else ""
        name = aliases.get(name, name)
        if name not in known:
            raise InvalidArgument(f"{what} have no {key!r}; they have {', '.join(sorted(known))}")
        if name in found:
            raise InvalidArgument(f"{what} have {key!r} twice, in two spellings")
        found[name] = value
    return found


__all__ = [
    "BYTES_MAX",
    "COUNT_MAX",
    "attributes_of",
    "broker_of",
    "count_of",
    "data_of",
    "flag_of",
    "name_of",
    "named",
    "nanoseconds",
    "number_of",
    "ordering_key_of",
    "seconds_of",
    "snake_case",
]
