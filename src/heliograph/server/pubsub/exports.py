"""Export subscriptions: BigQuery, Cloud Storage, Bigtable (protocol 1.14.1). Checked, kept, given back as active.

Nothing is written anywhere yet. Whoever runs them begins here: `destination` says where a subscription's messages are
to go, and a runner would consume it like any subscriber, one task per subscription.
"""

from __future__ import annotations

import re
from typing import Any

from heliograph.errors import InvalidArgument
from heliograph.server.pubsub import durations

DESTINATIONS = ("bigquery_config", "cloud_storage_config", "bigtable_config")
"""The fields of a Subscription, of which it has one at most."""

FILE_SECONDS = (60, 600)
FILE_SECONDS_DEFAULT = 300
FILE_BYTES = (1_000, 10 * 1024**3)
FILE_MESSAGES_MIN = 1_000

_BIGQUERY_TABLE = re.compile(r"([^\s./:]+\.[^\s./:]+:)?[^\s./:]+[.:][^\s./:]+\.[^\s./:]+")
_BIGTABLE_TABLE = re.compile(r"projects/[^/\s]+/instances/[^/\s]+/tables/[^/\s]+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._\-]{1,220}[a-z0-9]")


def destination(subscription: Any) -> str:
    """Which of `DESTINATIONS` a Subscription has; "" = none.

    Raises:
        InvalidArgument: more than one (1.5.6).
    """
    chosen = [name for name in DESTINATIONS if subscription.HasField(name)]
    if len(chosen) > 1:
        raise InvalidArgument(
            "At most one of push_config, bigquery_config, cloud_storage_config and bigtable_config may be set."
        )
    return chosen[0] if chosen else ""


def normalise(subscription: Any, name: str) -> None:
    """Check the configuration in the field `name`, one of `DESTINATIONS`, give it its defaults, and call it active.

    Raises:
        InvalidArgument: a field breaks its rule.
    """
    config = getattr(subscription, name)
    _CHECKS[name](config)
    config.state = type(config).State.Value("ACTIVE")


def _check_bigquery(config: Any) -> None:
    if not _BIGQUERY_TABLE.fullmatch(config.table):
        raise InvalidArgument(
            f"Invalid BigQuery table given (table={config.table}). It has the form {{project}}.{{dataset}}.{{table}}."
        )
    if config.use_topic_schema and config.use_table_schema:
        raise InvalidArgument("At most one of use_topic_schema and use_table_schema may be set.")


def _check_cloud_storage(config: Any) -> None:
    check_bucket(config.bucket)
    if config.filename_suffix.endswith("/"):
        raise InvalidArgument("The filename_suffix must not end in '/'.")
    if not config.HasField("max_duration"):
        config.max_duration.seconds = FILE_SECONDS_DEFAULT
    durations.check_between("max_duration", durations.nanoseconds(config.max_duration), FILE_SECONDS, "1m and 10m")
    low, high = FILE_BYTES
    if config.max_bytes and not low <= config.max_bytes <= high:
        raise InvalidArgument(
            f"The value for max_bytes is out of bounds. You passed {config.max_bytes} in the request, but the value "
            f"must be between {low} and {high}."
        )
    if config.max_messages and config.max_messages < FILE_MESSAGES_MIN:
        raise InvalidArgument(
            f"The value for max_messages is too small. You passed {config.max_messages} in the request, but the "
            f"minimum value is {FILE_MESSAGES_MIN}."
        )


def _check_bigtable(config: Any) -> None:
    if not _BIGTABLE_TABLE.fullmatch(config.table):
        raise InvalidArgument(
            f"Invalid Bigtable table given (table={config.table}). It has the form "
            "projects/{project}/instances/{instance}/tables/{table}."
        )


_CHECKS = {
    "bigquery_config": _check_bigquery,
    "cloud_storage_config": _check_cloud_storage,
    "bigtable_config": _check_bigtable,
}


def check_bucket(bucket: str) -> None:
    """The name of a Cloud Storage bucket, without `gs://`.

    Raises:
        InvalidArgument: it is not one.
    """
    if not _BUCKET.fullmatch(bucket):
        raise InvalidArgument(f"Invalid bucket name given (bucket={bucket}).")
