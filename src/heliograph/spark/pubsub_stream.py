"""A subscription of any server that speaks Google Cloud Pub/Sub v1, as a stream: plain Pull over REST, at least once.

Such a server keeps no claims, so the driver pulls and holds what it pulled; tasks get their messages from there. What
the query made of them is durable before they are acknowledged, so nothing is lost; but after a crash of the driver
messages come again, also those of a micro-batch whose output was written already. Deadlines are extended as long as the
driver lives.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from heliograph.errors import FailedPrecondition, HeliographError, SubscriptionNotFound, Unavailable
from heliograph.spark.columns import chosen
from heliograph.spark.door import Address
from heliograph.spark.log_stream import Patience, default_limit
from heliograph.spark.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, int]

PULL_MESSAGES_MAX = 1_000
"""Of one call; the service's own bound."""

ACK_IDS_MAX = 2_500
"""Of one call: the service takes half a megabyte."""

ACK_DEADLINE_SECONDS = 600
"""The longest that the service knows."""

EXTEND_SECONDS = 120
"""How often deadlines are extended."""

Received = dict[str, Any]


class PulledPart(InputPartition):
    """Messages as the server gave them, on their way to a task."""

    def __init__(self, messages: list[Received]) -> None:
        self.messages = messages


class PubSubRest:
    """The three calls that a subscriber needs.

    Args:
        address: of the server.
        subscription: its full name.
    """

    def __init__(self, address: Address, subscription: str) -> None:
        endpoint = address.endpoint if "://" in address.endpoint else f"http://{address.endpoint}"
        self._url = f"{endpoint.rstrip('/')}/v1/{subscription}"
        self._subscription = subscription
        self._timeout_seconds = address.timeout_seconds
        self._address = address
        self._headers = {"Content-Type": "application/json"} | address.headers

    def pull(self, max_messages: int) -> list[Received]:
        """What is there, at once. Raises: SubscriptionNotFound, FailedPrecondition, Unavailable."""
        answer = self._call("pull", {"maxMessages": max_messages, "returnImmediately": True})
        return list(answer.get("receivedMessages", []))

    def acknowledge(self, ack_ids: list[str]) -> None:
        """They are done. Raises: as `pull`."""
        for start in range(0, len(ack_ids), ACK_IDS_MAX):
            self._call("acknowledge", {"ackIds": ack_ids[start : start + ACK_IDS_MAX]})

    def extend(self, ack_ids: list[str]) -> None:
        """They take longer. Raises: as `pull`."""
        for start in range(0, len(ack_ids), ACK_IDS_MAX):
            request = {"ackIds": ack_ids[start : start + ACK_IDS_MAX], "ackDeadlineSeconds": ACK_DEADLINE_SECONDS}
            self._call("modifyAckDeadline", request)

    def _call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._url}:{method}", json.dumps(body).encode(), self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_seconds) as response:
                answer = json.loads(response.read() or b"{}")
        except HTTPError as error:
            error.close()
            if error.code in (401, 403):
                raise self._address.refusal(error.code, f"POST /v1/{self._subscription}:{method}") from None
            if error.code == 404:
                raise SubscriptionNotFound(self._subscription) from None
            kind = Unavailable if error.code >= 500 or error.code == 429 else FailedPrecondition
            raise kind(f"{self._url}:{method} answered {error.code}") from None
        except (URLError, OSError, ValueError) as error:
            raise Unavailable(f"No whole answer from {self._url}: {error}") from None
        return dict(answer)


class PubSubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pulls from a subscription in a streaming query.

    Args:
        options: from `ReadOptions.parse`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._rest = PubSubRest(options.address, options.subscription)
        self._held: dict[int, list[Received]] = {}  # of micro-batches that are not acknowledged, by their numbers
        self._waiting: list[Received] = []  # pulled, and in no micro-batch yet
        self._patience = Patience(options.limits)
        self._ends_by_itself = self._is_empty = False
        self._keeping = False

    def initialOffset(self) -> Offset:
        """A new query has pulled nothing."""
        return {"pull": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """See `default_limit`."""
        return default_limit(self._options.limits)

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends once a pull finds nothing: the protocol does not tell how many there are."""
        self._ends_by_itself = True

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Acknowledge what is durable, and pull the next micro-batch. Raises: as `PubSubRest.pull`."""
        number = (start or self.initialOffset())["pull"]
        self._acknowledge(number)
        self._keep()
        if self._is_empty:
            return {"pull": number}
        limits = self._options.limits
        unlimited = isinstance(limit, ReadAllAvailable)
        wanted = PULL_MESSAGES_MAX if unlimited or limits.messages_max is None else limits.messages_max
        bytes_max = None if unlimited else limits.bytes_max
        while (fitting := _fitting(self._waiting, wanted, bytes_max)) == len(self._waiting) < wanted:
            found = self._rest.pull(min(wanted - fitting, PULL_MESSAGES_MAX))
            if not found:
                break
            self._waiting += found
        if not fitting:
            self._is_empty = self._ends_by_itself
            return {"pull": number}
        if not self._ends_by_itself and not self._patience.is_over(len(self._waiting)):
            return {"pull": number}
        end = max(number, *self._held) + 1 if self._held else number + 1
        self._held[end], self._waiting = self._waiting[:fitting], self._waiting[fitting:]
        return {"pull": end}

    def partitions(self, start: Offset, end: Offset) -> list[PulledPart]:
        """What was pulled for the micro-batch; nothing for one that another driver pulled: the server delivers those
        messages again."""
        numbers = range(start["pull"] + 1, end["pull"] + 1)
        messages = [message for number in numbers for message in self._held.get(number, [])]
        size = self._options.claim_size
        if self._options.partitions_min:
            size = max(min(size, -(-len(messages) // self._options.partitions_min)), 1)
        return [PulledPart(messages[start : start + size]) for start in range(0, len(messages), size)] or [
            PulledPart([])
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The messages as Arrow, on an executor."""
        assert isinstance(partition, PulledPart)
        import pyarrow as pa

        from heliograph.wire.arrow import CLAIM_SCHEMA
        from heliograph.wire.arrow import chosen as chosen_fields

        if partition.messages:
            schema = chosen_fields(CLAIM_SCHEMA, list(chosen("queue", self._options.left_out)))
            rows = [_row(received) for received in partition.messages]
            yield pa.RecordBatch.from_pylist(rows, schema)

    def commit(self, end: Offset) -> None:
        """What is up to `end` is durable where the query writes to. Raises: as `PubSubRest.pull`."""
        self._acknowledge(end["pull"])

    def _acknowledge(self, up_to: int) -> None:
        for number in [number for number in self._held if number <= up_to]:
            self._rest.acknowledge([received["ackId"] for received in self._held[number]])
            del self._held[number]

    def _keep(self) -> None:
        if not self._keeping:
            self._keeping = True
            threading.Thread(target=self._extend, name="heliograph-leases", daemon=True).start()

    def _extend(self) -> None:
        pause = threading.Event()
        while True:
            for messages in [*self._held.values(), self._waiting]:
                with contextlib.suppress(HeliographError):  # tried again before the deadline
                    self._rest.extend([received["ackId"] for received in messages])
            pause.wait(EXTEND_SECONDS)


def _fitting(messages: list[Received], messages_max: int, bytes_max: int | None) -> int:
    """How many of the first messages are within these bounds; one is, whatever its size."""
    if bytes_max is None:
        return min(len(messages), messages_max)
    size_bytes = 0
    for place, received in enumerate(messages[:messages_max]):
        encoded = received["message"].get("data", "")
        size_bytes += len(encoded) * 3 // 4 - encoded.count("=", -2)
        if place and size_bytes > bytes_max:
            return place
    return min(len(messages), messages_max)


def _row(received: Received) -> dict[str, Any]:
    message = received["message"]
    published = message.get("publishTime", "1970-01-01T00:00:00Z")
    published_ns = _nanoseconds(published)
    return {
        "message_id": message["messageId"],
        "ordering_key": message.get("orderingKey", ""),
        "attributes": list(message.get("attributes", {}).items()),
        "data": base64.b64decode(message.get("data", "")),
        "publish_time": datetime.fromtimestamp(published_ns // 1_000_000_000, UTC).replace(
            microsecond=published_ns // 1_000 % 1_000_000
        ),
        "publish_time_ns": published_ns,
        "delivery_attempt": received.get("deliveryAttempt") or None,
    }


def _nanoseconds(text: str) -> int:
    """Of an RFC 3339 time, to all of its digits."""
    seconds, _, rest = text.removesuffix("Z").partition(".")
    whole = int(datetime.fromisoformat(seconds).replace(tzinfo=UTC).timestamp())
    return whole * 1_000_000_000 + int((rest or "0").ljust(9, "0")[:9])
