"""The field `push_config` of a Subscription (protocol 1.5.16, 1.13.6): is it one, and does it make sense."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from heliograph.errors import InvalidArgument

VERSIONS = ("v1beta1", "v1", "v1beta2")
VERSION_ATTRIBUTE = "x-goog-version"


def is_push(config: Any) -> bool:
    """Whether messages are pushed; an empty configuration means that they are pulled."""
    return bool(config.push_endpoint)


def check(config: Any) -> None:
    """A `PushConfig`. Endpoints without TLS are accepted, since those of tests have none.

    Raises:
        InvalidArgument: the endpoint is no URL, or an attribute is unknown.
    """
    if config.push_endpoint and not _is_url(config.push_endpoint):
        raise InvalidArgument(
            f"Invalid push endpoint given (endpoint={config.push_endpoint}). Refer to "
            "https://cloud.google.com/pubsub/subscriber#create for more information."
        )
    for key, value in config.attributes.items():
        if key != VERSION_ATTRIBUTE or value not in VERSIONS:
            raise InvalidArgument(
                f"Invalid push attribute given ({key}={value}). Only {VERSION_ATTRIBUTE} may be set, to one of "
                f"{', '.join(VERSIONS)}."
            )


def _is_url(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
