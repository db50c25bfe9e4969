"""Where a subscription stands in its topic's log, and what it has loaded from there.

What is not loaded yet is `next_sequence` and all behind it, and before that perhaps runs of earlier sequences: what a
filter let pass, or a seek brought back. Loading is a pure function of the log, so it needs no fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heliograph.engine.backlog import Backlog
from heliograph.engine.dead_letter import DeadLetter
from heliograph.engine.filters import parse_filter
from heliograph.engine.leases import Leases
from heliograph.engine.limits import PRIORITY_MAX
from heliograph.engine.message import Message, priority_of, size_bytes
from heliograph.engine.ordering import OrderingKeys
from heliograph.engine.page import PAGE_MESSAGES
from heliograph.engine.ranges import Run, Runs, count_of, difference, from_runs, to_runs, union
from heliograph.engine.schedule import Schedule
from heliograph.engine.settings import SubscriptionSettings
from heliograph.engine.statistics import Totals
from heliograph.engine.topic import Topic
from heliograph.errors import HeliographError


class Loading:
    """State of one subscription, as far as it comes from the log and goes with time.

    Args:
        name: opaque to the engine.
        number: never reused; ack ids begin with it.
        topic: whose log it reads; it keeps it when the topic is deleted.
        settings: see `SubscriptionSettings`.
        created_ns: nanoseconds since the epoch.
    """

    __slots__ = (
        "_delayed",
        "_earlier",
        "_expires",
        "_keys",
        "_revived_ns",
        "backlog",
        "created_ns",
        "dead",
        "detached",
        "failures",
        "filter",
        "first_sequence",
        "held_bytes",
        "lease_number",
        "leases",
        "name",
        "next_sequence",
        "number",
        "outstanding_bytes",
        "scheduled_ns",
        "settings",
        "topic",
        "totals",
        "touched_ns",
        "used_ns",
    )

    def __init__(self, name: str, number: int, topic: Topic, settings: SubscriptionSettings, created_ns: int) -> None:
        self.name = name
        self.number = number
        self.topic = topic
        self.settings = settings
        self.created_ns = created_ns
        self.detached = False
        self.filter = parse_filter(settings.filter) if settings.filter else None
        self.first_sequence = self.next_sequence = topic.log.next_sequence
        self.backlog = Backlog()
        self.leases = Leases()
        self.lease_number = 0  # of the latest hand-out
        self.failures: dict[int, int] = {}  # of messages handed out before; a hand-out taken back counts no failure
        self.dead: dict[int, DeadLetter] = {}  # oldest first
        self.totals = Totals()
        self.outstanding_bytes = 0
        self.held_bytes = 0  # kept only where a capacity bounds it
        self.used_ns = created_ns  # when it was last used, as far as facts tell
        self.touched_ns = 0  # and since they told it
        self.scheduled_ns = 0  # the engine's timer entry; 0 = none
        # what few subscriptions need is made when it is needed: ten thousand of them shall cost little
        self._keys: OrderingKeys | None = OrderingKeys() if settings.enable_message_ordering else None
        self._earlier: Runs | None = None  # not loaded yet, and below `next_sequence`
        self._delayed: Schedule | None = None
        self._expires: Schedule | None = None
        self._revived_ns: dict[int, int] | None = None  # where priorities age: when dead letters came back

    # ── what it is ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_eager(self) -> bool:
        """Whether messages are loaded as they are published: where priorities, delays or a capacity must be known, or
        a filter makes for many small runs."""
        return self.filter is not None or self._looks_inside(self.settings)

    def _looks_inside(self, settings: SubscriptionSettings) -> bool:
        """Whether messages must be seen to be loaded; with ordering keys they must, too, but later will do."""
        return not self.topic.plain or settings.prioritised or settings.capacity is not None or settings.ttl_ns > 0

    @property
    def unloaded(self) -> int:
        """How many messages are not loaded yet."""
        count = self.topic.log.next_sequence - self.next_sequence
        return count if self._earlier is None else count + self._earlier.count

    @property
    def waiting(self) -> int:
        """Messages that are ready, or wait for their key's turn, or are not loaded yet."""
        keys = self._keys.waiting if self._keys is not None else 0
        return self.backlog.count + keys + self.unloaded

    @property
    def delayed(self) -> int:
        """Messages that wait for their time."""
        return len(self._delayed) if self._delayed is not None else 0

    @property
    def held(self) -> int:
        """Messages waiting, delayed or leased."""
        return self.waiting + self.delayed + len(self.leases)

    def attempt(self, sequence: int) -> int:
        """Which delivery the next, or the current, one is: from 1."""
        return self.failures.get(sequence, 0) + 1

    def expires_at_ns(self, sequence: int) -> int:
        """When the message expires; 0 = never."""
        return self._expires.instant_ns(sequence) if self._expires is not None else 0

    def priority_of(self, message: Message) -> int:
        """Its band here."""
        if not self.settings.prioritised:
            return 0
        return priority_of(message, self.settings.default_priority)

    # ── loading from the log ────────────────────────────────────────────────────────────────────────────────────────

    def load(self, last: int) -> None:
        """Take in the messages up to sequence `last`."""
        last = min(last, self.topic.log.next_sequence - 1)
        if self._earlier is not None:
            self._load_earlier(self._earlier, last)
        if self.next_sequence > last:
            return
        if self._keys is None and not self._looks_inside(self.settings):
            self.backlog.extend(range(self.next_sequence, last + 1))
            self.next_sequence = last + 1
            return
        while self.next_sequence <= last:
            # in pages, each read before anything changes: the store may fail
            end = min(last, self.next_sequence + PAGE_MESSAGES - 1)
            messages = list(self.topic.log.held(self.next_sequence, end))
            self.next_sequence = end + 1
            self._take_in(messages)

    def load_more(self, count: int) -> None:
        """Take in up to `count` of the lowest that are not loaded, and at least one if there is any."""
        if self._earlier is not None:
            self.load(self._earlier.first_run(count)[1] - 1)
        else:
            self.load(self.next_sequence + count - 1)

    def _load_earlier(self, earlier: Runs, last: int) -> None:
        blind = self._keys is None and not self._looks_inside(self.settings)
        for first, stop in earlier.take(last):
            if blind:
                self.backlog.extend(range(first, stop))
                continue
            while first < stop:
                end = min(stop, first + PAGE_MESSAGES)
                try:
                    messages = self.topic.log.select(list(range(first, end)))
                except HeliographError:
                    earlier.put_back((first, stop))
                    raise
                self._take_in(messages)
                first = end
        if not earlier.count:
            self._earlier = None

    def pass_over(self, first: int, stop: int, matched: Sequence[Run]) -> None:
        """MessagesPublished, where there is a filter: of the sequences in [first, stop) only those that it lets pass
        come to the subscription."""
        self.next_sequence = stop
        self.topic.log.release(list(from_runs(difference([(first, stop)], matched))))
        self.totals.published += count_of(matched)
        if matched:
            if self._earlier is None:
                self._earlier = Runs()
            self._earlier.add(matched)

    def _take_in(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self.settings.capacity is not None:
                self.held_bytes += size_bytes(message)
            self._note_expiry(message)
            if (
                self._keys is None
                or not message.ordering_key
                or self._keys.admit(message.ordering_key, message.sequence)
            ):
                self._wait_for_time(message)

    def first_expiry_ns(self, message: Message) -> int:
        """When it expires, counted from its publication; 0 = never."""
        expires_at_ns = message.extras.expires_at_ns if message.extras is not None else 0
        if not expires_at_ns and self.settings.ttl_ns:
            return message.publish_time_ns + self.settings.ttl_ns
        return expires_at_ns

    def _note_expiry(self, message: Message) -> None:
        expires_at_ns = self.first_expiry_ns(message)
        if expires_at_ns:
            self._expire_at(message.sequence, expires_at_ns)

    def _expire_at(self, sequence: int, expires_at_ns: int) -> None:
        if self._expires is None:
            self._expires = Schedule()
        self._expires.add(sequence, expires_at_ns)

    def _wait_for_time(self, message: Message) -> None:
        """It has its key's turn, if it has a key; now it waits for its own time, if it has one."""
        if message.extras is not None and message.extras.available_at_ns:
            self._delay(message.sequence, message.extras.available_at_ns)
        else:
            self.backlog.add(message.sequence, self.priority_of(message))

    def _delay(self, sequence: int, available_at_ns: int) -> None:
        if self._delayed is None:
            self._delayed = Schedule()
        self._delayed.add(sequence, available_at_ns)

    def skip(self, sequences: Sequence[int]) -> None:
        """MessagesDropped: the newest in the log never reach this subscription."""
        self.load(sequences[0] - 1)
        self._earlier = None
        self.next_sequence = max(self.next_sequence, sequences[-1] + 1)
        self.topic.log.release(sequences)
        self.totals.dropped += len(sequences)

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def promote(self, now_ns: int) -> bool:
        """Delayed messages whose time has come are ready. True if there were any. No fact: time alone decides it."""
        if self._delayed is None:
            return False
        sequences = self._delayed.due(now_ns)
        try:
            messages = self.topic.log.select(sequences)
        except HeliographError:
            self._delayed.requeue(sequences)
            raise
        for message in messages:
            self._delayed.remove(message.sequence)
            self.backlog.add(message.sequence, self.priority_of(message))
        return bool(sequences)

    def expired(self, now_ns: int) -> list[int]:
        """Waiting messages past their expiry, wherever they stand; leased ones are looked at when they come back."""
        if self._expires is None:
            return []
        leased = self.leases.by_sequence
        return sorted([sequence for sequence in self._expires.due(now_ns) if sequence not in leased])

    def requeue_expired(self, sequences: Sequence[int]) -> None:
        """What `expired` gave could not be dealt with: it gives them again."""
        if self._expires is not None:
            self._expires.requeue(sequences)

    def next_deadline_ns(self) -> int | None:
        """The next instant at which something here may change by itself."""
        deadline_ns = self.leases.next_deadline_ns()
        for schedule in (self._delayed, self._expires):
            instant_ns = schedule.next_ns() if schedule is not None else None
            if instant_ns is not None and (deadline_ns is None or instant_ns < deadline_ns):
                deadline_ns = instant_ns
        return deadline_ns

    # ── what comes next ─────────────────────────────────────────────────────────────────────────────────────────────

    def first(self, count: int, now_ns: int) -> list[int]:
        """Up to `count` ready messages in the order of delivery: the highest priority first, then the oldest."""
        if not self.settings.priority_aging_ns or not self.settings.prioritised:
            return self.backlog.first(count)
        period_ns = self.settings.priority_aging_ns

        def band_of(sequence: int, priority: int) -> int:
            waited_ns = max(now_ns - self._waits_since_ns(sequence), 0)
            return min(priority + waited_ns // period_ns, PRIORITY_MAX)

        return self.backlog.first_aged(count, band_of)

    def _waits_since_ns(self, sequence: int) -> int:
        """When it could first be delivered; leases and backoffs do not begin its age anew, a retry from the dead
        letters does. A function of the log and of facts, so that recovery finds the same order."""
        if self._revived_ns is not None and sequence in self._revived_ns:
            return self._revived_ns[sequence]
        message = self.topic.log[sequence]
        available_at_ns = message.extras.available_at_ns if message.extras is not None else 0
        return max(message.publish_time_ns, available_at_ns)

    # ── what it holds ───────────────────────────────────────────────────────────────────────────────────────────────

    def waiting_sequences(self, unloaded_up_to: int | None = None) -> Iterator[int]:
        """Every message that is neither leased nor a dead letter; not in the order of delivery. Of those that are not
        loaded only the ones up to `unloaded_up_to`, if it is given."""
        yield from self.backlog
        yield from self._delayed or ()
        if self._keys is not None:
            yield from self._keys
        last = self.topic.log.next_sequence - 1 if unloaded_up_to is None else unloaded_up_to
        yield from self.unloaded_sequences(last)

    def unloaded_sequences(self, last: int) -> Iterator[int]:
        """Of those that are not loaded yet the ones up to `last`, in order."""
        for first, stop in self._earlier or ():
            if first > last:
                return
            yield from range(first, min(stop, last + 1))
        yield from self.topic.log.held_sequences(self.next_sequence, last)

    def unacknowledged_runs(self) -> list[Run]:
        """Every message that waits or is leased, dead letters apart; what is not loaded is not looked at one by one."""
        loaded = [*self.backlog, *(self._delayed or ()), *(self._keys or ()), *self.leases.by_sequence]
        head = self.topic.log.next_sequence
        return union(to_runs(sorted(loaded)), self._earlier or (), [(self.next_sequence, head)])

    def unacknowledged(self) -> list[int]:
        """Every message it holds in any state, dead letters among them, by sequence."""
        return sorted([*self.waiting_sequences(), *self.leases.by_sequence, *self.dead])

    def oldest_waiting(self) -> int:
        """The lowest sequence that waits; 0 = none. Looks at the front of each place only."""
        fronts = self.backlog.fronts()
        fronts += [min(places) for places in (self._delayed, self._keys.fronts() if self._keys else ()) if places]
        unloaded = next(self.unloaded_sequences(self.topic.log.next_sequence - 1), 0)
        return min([*fronts, unloaded] if unloaded else fronts, default=0)
