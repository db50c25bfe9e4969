"""Which options the source and the sink know. One that they do not know is refused: a misspelt limit would be none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from heliograph.errors import InvalidArgument

_BROKER = ("endpoint", "token", "project", "timeoutSeconds")

READ = (
    *_BROKER,
    "mode",
    "topic",
    "topics",
    "topicPattern",
    "subscription",
    "startingOffsets",
    "startingTimestamp",
    "startingSnapshot",
    "endingOffsets",
    "endingTimestamp",
    "maxMessagesPerTrigger",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "includePayload",
    "includeAttributes",
    "failOnDataLoss",
    "pushdown",
    "consumer",
    "claimSize",
    "claimTtl",
    "protocol",
)
"""Of the source; see `source.py`."""

WRITE = (*_BROKER, "topic", "ratePerSecond")
"""Of the sink; see `sink.py`."""

_SPARK = frozenset(("checkpointlocation", "queryname", "owner", "provider", "location", "comment", "external"))
"""What Spark itself hands over (seen in 4.3.0): `start` of a stream the first two, tables of a catalog the others, and
their options a second time below `option.`."""

_ELSEWHERE: Mapping[str, str] = {
    "path": "topic",
    "paths": "topics",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "assign": "topic",
    "kafka.bootstrap.servers": "endpoint",
    "bootstrap.servers": "endpoint",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "groupid": "consumer",
    "groupidprefix": "consumer",
    "kafka.group.id": "consumer",
    "includeheaders": "includeAttributes",
    "subscriptionid": "subscription",
    "topicid": "topic",
    "projectid": "project",
    "maxrecordspertrigger": "maxMessagesPerTrigger",
    "maxrowspertrigger": "maxMessagesPerTrigger",
}
"""What other sources call it, or where Spark puts the argument of `load` and `save`."""


def check_options(options: Iterable[str], known: tuple[str, ...], what: str) -> None:
    """Refuse what is not known.

    Args:
        options: names, upper and lower case alike.
        known: `READ` or `WRITE`.
        what: has these options, such as "source".

    Raises:
        InvalidArgument: one is not known; the message names it, and the one that was meant perhaps.
    """
    by_lower = {name.lower(): name for name in known}
    for option in options:
        lower = option.lower()
        if lower in by_lower or lower in _SPARK or lower.startswith("option."):
            continue
        raise InvalidArgument(f"The {what} heliograph has no option {option}{_hint(lower, by_lower)}")


def _hint(lower: str, by_lower: Mapping[str, str]) -> str:
    meant = _ELSEWHERE.get(lower, "")
    if meant not in by_lower.values():
        near = difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.7)
        meant = by_lower[near[0]] if near else ""
    return (
        f"; {meant} is meant perhaps" if meant else f"; there are {', '.join(sorted(by_lower.values(), key=str.lower))}"
    )
