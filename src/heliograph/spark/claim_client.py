"""Claims messages of a subscription from a broker over HTTP (`heliograph.server.claims`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from heliograph.spark.door import Address, Door, persistently


class Claim(NamedTuple):
    """Messages that were taken at once: `number` grows within a subscription."""

    number: int
    messages: int


class Claimed(NamedTuple):
    """What a consumer has claimed and not acknowledged, and how many messages it could claim now."""

    claims: list[Claim]
    ready: int


class ClaimClient:
    """The claims of one consumer of one subscription. Holds no connection between calls, so it can be pickled.

    Args:
        address: of the broker.
        subscription: its full name.
        consumer: the name under which claims are found again.

    Raises:
        InvalidArgument: the endpoint is no address.
    """

    def __init__(self, address: Address, subscription: str, consumer: str) -> None:
        self._door = Door(address)
        self._whose = {"subscription": subscription, "consumer": consumer}

    def claim(self, max_messages: int, max_bytes: int, messages_per_claim: int, ttl_seconds: float) -> list[Claim]:
        """Take up to `max_messages` of up to `max_bytes` (0 = no bound), durably; perhaps none. Not tried again when
        the answer was lost: what was claimed then is found by `claimed`. Raises: SubscriptionNotFound, InvalidArgument,
        Unavailable."""
        wanted = {
            "max_messages": max_messages,
            "max_bytes": max_bytes,
            "messages_per_claim": messages_per_claim,
            "ttl_seconds": ttl_seconds,
        }
        return _claims(self._door.post("/api/v1/claims/claim", self._whose | wanted))

    def claimed(self) -> Claimed:
        """What there is. Raises: SubscriptionNotFound, Unavailable."""
        found = persistently(lambda: self._door.get("/api/v1/claims", self._whose))
        return Claimed(_claims(found), int(found["ready"]))

    def fetch(self, number: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """All messages of a claim, as often as they are asked for.

        Args:
            number: of the claim.
            columns: names of `heliograph.wire.arrow.CLAIM_SCHEMA`.

        Raises:
            SubscriptionNotFound.
            ClaimNotFound: it was acknowledged, or has ended.
            Unavailable: the broker did not answer, or not to the end, several times.
        """
        wanted = self._whose | {"claim": str(number), "columns": ",".join(columns)}
        return persistently(lambda: list(self._door.batches("/api/v1/claims/fetch", wanted, f"claim {number}")))

    def acknowledge(self, up_to: int) -> int:
        """The claims up to this number are done; idempotent. Returns how many messages they had. Raises: as
        `claimed`."""
        request = self._whose | {"up_to": up_to}
        return int(persistently(lambda: self._door.post("/api/v1/claims/acknowledge", request))["messages"])

    def extend(self, ttl_seconds: float) -> int:
        """All claims last so long from now. Returns how many messages they have. Raises: as `claimed`."""
        request = self._whose | {"ttl_seconds": ttl_seconds}
        return int(self._door.post("/api/v1/claims/extend", request)["messages"])

    def release(self) -> int:
        """Give all back, without a failure counted. Returns how many messages that were. Raises: as `claimed`."""
        return int(self._door.post("/api/v1/claims/release", self._whose)["messages"])


def _claims(answer: dict[str, list[dict[str, int]]]) -> list[Claim]:
    return [Claim(each["number"], each["messages"]) for each in answer["claims"]]
