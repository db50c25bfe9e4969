"""Where one subscriber takes its messages from: one queue, or, for a pattern, several; the highest priority first.

Nothing is polled. The broker tells when a queue may have something, and only then it is looked at. What a queue has in
front can become less without a word (somebody else takes it), never more; so the best of the remembered fronts is
looked at once more before it is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush, heapreplace

from heliograph.broker.protocol import Watch
from heliograph.broker.reply import Reply
from heliograph.client.priority_broker import PriorityBroker
from heliograph.client.priority_routing import Queue
from heliograph.engine.message import Delivery
from heliograph.errors import SubscriptionNotFound

Front = tuple[int, int, str]


class Sources:
    """Queues to take from. Thread-safe: several workers may take and wait.

    Args:
        broker: theirs.
        queues: the first is the subscriber's own; the others go (`leave`) when somebody subscribes to their topics.
        consumer: what the broker calls the subscriber.
    """

    def __init__(self, broker: PriorityBroker, queues: Sequence[Queue], consumer: str) -> None:
        self._broker = broker
        self._consumer = consumer
        self._queues = {queue.name: queue for queue in queues}
        self._taking = threading.Lock()  # guards the queues and fronts; the broker is called under it
        self._told = (
            threading.Condition()
        )  # guards what follows; the broker's watches take it, so nothing is called under it
        self._to_look_at = dict.fromkeys(self._queues)
        self._closed = False
        self._fronts: dict[str, Front] = {}
        self._heap: list[Front] = []
        self._watches: dict[str, Watch] = {}
        for queue in queues:
            self._watches[queue.name] = broker.backing.watch(queue.resource, partial(self._tell, queue.name))

    def _tell(self, name: str) -> None:
        with self._told:
            self._to_look_at[name] = None
            self._told.notify()

    @property
    def queues(self) -> list[Queue]:
        """Those that it takes from at present."""
        with self._taking:
            return list(self._queues.values())

    @property
    def closed(self) -> bool:
        """Whether nothing comes from here any more."""
        return self._closed

    def close(self) -> None:
        """Nothing is taken any more, and nobody waits. Idempotent."""
        with self._told:
            self._closed = True
            self._told.notify_all()
        for watch in self._watches.values():
            watch.close()

    def leave(self, name: str) -> None:
        """Take nothing more from that queue, if it is one of these. No taking is under way when this returns."""
        with self._taking:
            if self._queues.pop(name, None) is not None:
                self._watches[name].close()
                self._fronts.pop(name, None)

    def wait(self) -> None:
        """Until there may be something to take, or it is closed."""
        with self._told:
            self._told.wait_for(lambda: self._to_look_at or self._closed)

    def pause(self, seconds: float) -> None:
        """For so long, unless it is closed meanwhile: after a failure. Then everything is looked at once more."""
        with self._told:
            self._told.wait_for(lambda: self._closed, seconds)
        for queue in self.queues:
            self._tell(queue.name)

    def take(self) -> tuple[Queue, Reply[list[Delivery]]] | None:
        """Lease the message that goes first. None when there is none, or once closed.

        Raises:
            SubscriptionNotFound: the subscriber's own queue was deleted.
            Unavailable.
        """
        if len(self._queues) > 1:
            routing = self._broker.routing
            with routing.lock:  # before ours: those whose topics were subscribed to meanwhile leave
                routing.look()
        with self._taking:
            with self._told:
                if self._closed:
                    return None
                names, self._to_look_at = self._to_look_at, {}
            if len(self._queues) == 1:
                (queue,) = self._queues.values()
                return self._pull(queue) if names else None
            for name in names:
                if name in self._queues:
                    self._look_at(self._queues[name])
            return self._take_best()

    def _look_at(self, queue: Queue) -> None:
        front = self._front(queue)
        if front is None:
            self._fronts.pop(queue.name, None)
        elif self._fronts.get(queue.name) != front:
            self._fronts[queue.name] = front
            heappush(self._heap, front)

    def _front(self, queue: Queue) -> Front | None:
        try:
            return self._broker.front(queue)
        except SubscriptionNotFound:
            if queue.name == next(iter(self._queues)):
                raise
            # a topic's own queue was deleted: what it had kept is gone, and the pattern goes on
            del self._queues[queue.name]
            self._watches[queue.name].close()
            return None

    def _take_best(self) -> tuple[Queue, Reply[list[Delivery]]] | None:
        heap, fronts = self._heap, self._fronts
        while heap:
            best = heap[0]
            queue = self._queues.get(best[2])
            if queue is None or fronts.get(best[2]) != best:
                heappop(heap)
                continue
            front = self._front(queue)
            if front is not None and front != best:
                fronts[queue.name] = front
                heapreplace(heap, front)
                continue
            heappop(heap)
            del fronts[queue.name]
            taken = self._pull(queue) if front is not None else None
            if taken is not None:
                return taken
        return None

    def _pull(self, queue: Queue) -> tuple[Queue, Reply[list[Delivery]]] | None:
        reply = self._broker.pull(queue, self._consumer)
        if not reply.provisional:
            return None
        self._tell(queue.name)  # there may be more, for the next worker
        return queue, reply
