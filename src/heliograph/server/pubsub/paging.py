"""Lists in pages, by name; a page token says after which name the next page begins (protocol 1.3.6)."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from heliograph.errors import InvalidArgument
from heliograph.server.pubsub.limits import PAGE_SIZE_MAX, RESPONSE_BYTES_MAX, check_between

TAG_BYTES_MAX = 6  # of a resource within a response: the field, and its length


def page(names: Sequence[str], page_size: int, page_token: str) -> tuple[slice, str]:
    """Which of the sorted `names` the page holds, and the token of the next page; "" = that was the last.

    Args:
        names: sorted.
        page_size: 0 = as many as may be; more than the maximum is the maximum.
        page_token: "" = from the beginning.

    Raises:
        InvalidArgument: a negative size, or a token that no page gave.
    """
    check_between("page_size", page_size, (0, 2**31 - 1))
    start = bisect_right(names, _after(page_token)) if page_token else 0
    end = start + min(page_size or PAGE_SIZE_MAX, PAGE_SIZE_MAX)
    return slice(start, end), _token(names, end)


def page_of(names: Sequence[str], page_size: int, page_token: str, show: Callable[[int], Any]) -> tuple[list[Any], str]:
    """The resources of a page, and the token as `page` gives it. It ends early where it would be larger than clients
    receive, but has one resource at least.

    Args:
        names, page_size, page_token: as of `page`.
        show: gives the resource of the name at an index.

    Raises:
        InvalidArgument: as `page`.
    """
    part, token = page(names, page_size, page_token)
    shown: list[Any] = []
    size = 0
    for index in range(part.start, min(part.stop, len(names))):
        resource = show(index)
        size += resource.ByteSize() + TAG_BYTES_MAX
        if size > RESPONSE_BYTES_MAX and shown:
            return shown, _token(names, index)
        shown.append(resource)
    return shown, token


def _token(names: Sequence[str], end: int) -> str:
    """Of the page that begins at the index `end`."""
    return base64.urlsafe_b64encode(names[end - 1].encode()).decode() if end < len(names) else ""


def _after(page_token: str) -> str:
    try:
        name = base64.b64decode(page_token.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (UnicodeError, binascii.Error):
        name = ""
    if not name.startswith("projects/"):
        raise InvalidArgument(f"Invalid page token given (page_token={page_token}).")
    return name
