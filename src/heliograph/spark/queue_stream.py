"""A subscription as a stream: messages are claimed, read as often as Spark likes, and acknowledged when what the query
made of them is durable.

An offset is ``{"claim": 17, "messages": 120000}``: the last claim, and how many messages all claims of the query had up
to it. A micro-batch is the claims in between, and reads the same however often it is repeated. Acknowledged is when
Spark asks for the next offset, also while nothing new comes: Spark's own `commit` is called only once a further
micro-batch is planned. A claim that ended (`claimTtl` without a sign of life) is not lost: its messages come again in a
later micro-batch, with `delivery_attempt` one higher.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from heliograph.errors import FailedPrecondition, HeliographError, Unavailable
from heliograph.spark import door
from heliograph.spark.claim_client import Claim, ClaimClient
from heliograph.spark.columns import chosen
from heliograph.spark.log_stream import Patience, default_limit
from heliograph.spark.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, int]

MESSAGES_AT_ONCE_MAX = 1_000_000
"""Of a micro-batch without any other bound."""

SIGNS_OF_LIFE = 3
"""Within the time that a claim lasts."""


class ClaimPart(InputPartition):
    """One claim: what one task reads; None reads nothing."""

    def __init__(self, claim: Claim | None) -> None:
        self.claim = claim

    def __repr__(self) -> str:
        return f"ClaimPart({self.claim})"


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes the messages of a subscription in a streaming query.

    Args:
        options: from `ReadOptions.parse`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client = ClaimClient(options.address, options.subscription, options.consumer)
        self._patience = Patience(options.limits)
        self._budget: int | None = None  # of a query that ends by itself: how many messages it may still claim
        self._acknowledged = 0  # claims up to here, by this process
        self._end: Offset | None = None  # of the latest micro-batch
        self._keeper: LeaseKeeper | None = None

    def initialOffset(self) -> Offset:
        """A new query has claimed nothing."""
        return {"claim": 0, "messages": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """See `default_limit`."""
        return default_limit(self._options.limits)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is ready now is what the query takes, and what it has claimed already. Raises: SubscriptionNotFound,
        Unavailable."""
        self._budget = self._client.claimed().ready

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Acknowledge what is durable, which is all up to `start`, and claim the next micro-batch.

        Raises:
            SubscriptionNotFound, Unavailable.
        """
        start = start or self.initialOffset()
        self._keep()
        self._acknowledge(start["claim"])
        failures = 0
        while True:
            try:
                claims = self._claims(start["claim"], limit)
                break
            except Unavailable:  # what was claimed before the answer was lost is among the claims the next time
                failures += 1
                door.pause(failures)
        self._end = start
        if claims:
            messages = sum(claim.messages for claim in claims)
            self._end = {"claim": claims[-1].number, "messages": start["messages"] + messages}
        return self._end

    def reportLatestOffset(self) -> Offset | None:
        """For the progress: `messages` beyond those of the micro-batch's end are the ones that wait."""
        if self._end is not None:
            with contextlib.suppress(HeliographError):
                return self._end | {"messages": self._end["messages"] + self._client.claimed().ready}
        return None

    def _claims(self, behind: int, limit: ReadLimit | None) -> list[Claim]:
        """All that the next micro-batch shall have: what is claimed and in none yet, since the driver died between the
        claim and Spark's note of it, and what is claimed now."""
        found = self._client.claimed()
        claims = [claim for claim in found.claims if claim.number > behind]
        limits = self._options.limits
        unlimited = isinstance(limit, ReadAllAvailable)
        wanted = MESSAGES_AT_ONCE_MAX if unlimited or not limits.messages_max else limits.messages_max
        wanted -= sum(claim.messages for claim in claims)
        if self._budget is not None:
            wanted = min(wanted, self._budget)
        elif not claims and not self._patience.is_over(found.ready):
            return []
        if wanted <= 0:
            return claims
        size = self._options.claim_size
        if self._options.partitions_min:
            size = min(size, -(-wanted // self._options.partitions_min))
        max_bytes = 0 if unlimited or limits.bytes_max is None else limits.bytes_max
        taken = self._client.claim(wanted, max_bytes, size, self._options.claim_ttl_seconds)
        if self._budget is not None:
            self._budget -= sum(claim.messages for claim in taken)
        return claims + taken

    def partitions(self, start: Offset, end: Offset) -> list[ClaimPart]:
        """The claims of a micro-batch.

        Raises:
            FailedPrecondition: some have ended, and `failOnDataLoss` is true.
            SubscriptionNotFound, Unavailable.
        """
        self._keep()
        claims = [claim for claim in self._client.claimed().claims if start["claim"] < claim.number <= end["claim"]]
        missing = end["messages"] - start["messages"] - sum(claim.messages for claim in claims)
        if missing and self._options.fail_on_data_loss:
            raise FailedPrecondition(
                f"{missing} messages that {self._options.consumer} had claimed of {self._options.subscription} are not "
                "its own any more: claims end after claimTtl without a sign of life. They are delivered again "
                "in a later "
                "micro-batch; to go on so, set failOnDataLoss to false"
            )
        return [ClaimPart(claim) for claim in claims] or [ClaimPart(None)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The messages of one claim, on an executor.

        Raises:
            ClaimNotFound: it has ended. The query fails, and goes on with what it still has.
            SubscriptionNotFound, Unavailable.
        """
        assert isinstance(partition, ClaimPart)
        claim = partition.claim
        if claim is None:
            return
        batches = self._client.fetch(claim.number, list(chosen("queue", self._options.left_out)))
        rows = sum(batch.num_rows for batch in batches)
        if rows != claim.messages:
            raise FailedPrecondition(f"Claim {claim.number} has {rows} of its {claim.messages} messages")
        yield from batches

    def commit(self, end: Offset) -> None:
        """What is up to `end` is durable where the query writes to. Raises: SubscriptionNotFound, Unavailable."""
        self._acknowledge(end["claim"])

    def stop(self) -> None:
        """Spark mostly ends the process instead; then claims last until their time is over, or the query goes on."""
        if self._keeper is not None:
            self._keeper.stop()

    def _acknowledge(self, up_to: int) -> None:
        if up_to > self._acknowledged:
            self._client.acknowledge(up_to)
            self._acknowledged = up_to

    def _keep(self) -> None:
        if self._keeper is None:
            self._keeper = LeaseKeeper(self._client, self._options.claim_ttl_seconds)


class LeaseKeeper:
    """Extends the claims of a consumer as long as this process lives.

    Args:
        client: of the consumer.
        ttl_seconds: how long claims last without it.
    """

    def __init__(self, client: ClaimClient, ttl_seconds: float) -> None:
        self._client = client
        self._ttl_seconds = ttl_seconds
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="heliograph-claims", daemon=True).start()

    def _run(self) -> None:
        while not self._stopped.wait(self._ttl_seconds / SIGNS_OF_LIFE):
            with contextlib.suppress(HeliographError):  # tried again before the time is over
                self._client.extend(self._ttl_seconds)

    def stop(self) -> None:
        """No further extension."""
        self._stopped.set()
