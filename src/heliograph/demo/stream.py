"""A streaming pull of the official client, started, watched and closed in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.futures import StreamingPullFuture
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import FlowControl

# Ten seconds are the shortest lease that Pub/Sub has: after a crash, what was on its way comes again so soon.
FLOW = FlowControl(max_messages=2_000, max_duration_per_lease_extension=10)
CLOSE_SECONDS_MAX = 15.0  # a client whose broker is gone would try for longer


class Stream:
    """One client and its stream.

    Args:
        subscription: full resource name.
        receive: called with every message, from the client's threads.
    """

    def __init__(self, subscription: str, receive: Callable[[Message], None]) -> None:
        self._client = pubsub_v1.SubscriberClient()
        self._future: StreamingPullFuture | None = self._client.subscribe(subscription, receive, flow_control=FLOW)

    def failure(self) -> BaseException | None:
        """What ended the stream, an error that `receive` raised included; None = it runs, or was closed."""
        future = self._future
        return future.exception() if future is not None and future.done() else None

    def close(self) -> None:
        """End the stream when the acknowledgements so far are sent. Idempotent."""
        future, self._future = self._future, None
        if future is None:
            return
        future.cancel()
        with contextlib.suppress(Exception):  # how it failed is `failure`'s to say
            future.result(CLOSE_SECONDS_MAX)
        self._client.close()
