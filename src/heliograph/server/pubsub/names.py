"""Resource names of Pub/Sub: `projects/{project}/topics/{id}` and its like (protocol 1.2)."""

from __future__ import annotations

import re
from functools import lru_cache
from secrets import token_hex

from heliograph.errors import InvalidArgument

DELETED_TOPIC = "_deleted-topic_"

_ID = r"(?!goog)[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}"
ID_RULE = "an id has 3 to 255 letters, digits and -_.~+%, begins with a letter, and not with goog"
"""`_ID` in words, for who may add to the real service's texts."""

_PROJECT_ID = r"[A-Za-z0-9][A-Za-z0-9\-_.:]{0,127}"
_PROJECT = re.compile(f"projects/{_PROJECT_ID}")
_NAME = re.compile(f"projects/{_PROJECT_ID}/(?P<collection>[a-z]+)/{_ID}")
_LENIENT_PROJECT = re.compile("projects/[^/\\s]+")
_LENIENT_NAME = re.compile("projects/[^/\\s]+/(?P<collection>[a-z]+)/[^/\\s]+")
_REFER = "Refer to https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information."


@lru_cache(maxsize=4096)
def _is_name(name: str, collection: str, lenient: bool) -> bool:
    match = (_LENIENT_NAME if lenient else _NAME).fullmatch(name)
    return match is not None and match["collection"] == collection


def check_new(name: str, collection: str, *, lenient: bool = False) -> None:
    """The name of a resource to be created.

    Args:
        name: full.
        collection: "topics", "subscriptions" …
        lenient: any id without a slash or a space will do.

    Raises:
        InvalidArgument: it is not one.
    """
    if not _is_name(name, collection, lenient):
        raise InvalidArgument(f"Invalid [{collection}] name: (name={name})")


def check(name: str, collection: str, *, lenient: bool = False) -> None:
    """The name of a resource that should exist. Arguments and errors as `check_new`."""
    if not _is_name(name, collection, lenient):
        raise invalid(name)


def check_project(name: str, *, lenient: bool = False) -> None:
    """`projects/{project}`. `lenient` as in `check_new`.

    Raises:
        InvalidArgument: it is not.
    """
    if not (_LENIENT_PROJECT if lenient else _PROJECT).fullmatch(name):
        raise invalid(name)


def invalid(name: str) -> InvalidArgument:
    """What is no name of a resource of the kind that is asked for."""
    return InvalidArgument(f"Invalid resource name given (name={name}). {_REFER}")


def is_of_pubsub(name: str) -> bool:
    """Whether a topic or a subscription is this door's. Those of others, work queues among them, have names of another
    form, and keep something of their own as their `resource`."""
    return name.startswith("projects/")


def collection(name: str) -> str:
    """What kind of resource a full name is of: "topics", "subscriptions" …; "" = it is none."""
    parts = name.split("/")
    return parts[2] if len(parts) == 4 else ""


def project(name: str) -> str:
    """`projects/{project}` of a full name."""
    return "/".join(name.split("/")[:2])


def leaf(name: str) -> str:
    """The last part of a name, which is how errors call a resource (1.2.5)."""
    return name.rpartition("/")[2]


def assigned(beside: str, collection: str) -> str:
    """A new random name in the project of the resource `beside` (1.2.3)."""
    return f"projects/{beside.split('/')[1]}/{collection}/assigned-{token_hex(10)}"
