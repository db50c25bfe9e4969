"""What must have become of every message, kept by hand beside the broker.

The ledger shares nothing with the engine: it is told what was published, sees what is delivered and how it is answered,
and knows the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.engine.message import Delivery, Extras, Message
from heliograph.engine.settings import SubscriptionSettings


@dataclass(eq=False)
class Record:
    """What the ledger knows of one message in one subscription."""

    message_id: str
    message: Message
    expires_ns: int
    earliest_ns: int  # not delivered before
    failures: int = 0
    lease_ns: int = 0  # until then it is leased; 0 = it is not
    ack_id: str = ""
    consumer: str = ""
    fate: str = ""  # acknowledged, dead, expired, dropped, purged; "" = still to be delivered
    revived: bool = False
    sought: bool = False


@dataclass(eq=False)
class Ledger:
    """All messages of one subscription."""

    name: str
    topic: str
    settings: SubscriptionSettings
    next_sequence: int  # of its topic's log, that it has not seen yet
    dropped: int = 0
    records: dict[str, Record] = field(default_factory=dict)
    dead: list[Record] = field(default_factory=list)  # every death

    def takes(self, message: Message) -> bool:
        """The only filter that there is lets one kind pass."""
        return not self.settings.filter or message.attributes.get("kind") == "a"

    def receive(self, message: Message, message_id: str) -> None:
        if self.takes(message):
            extras = message.extras or Extras()
            self.records[message_id] = Record(
                message_id, message, self.first_expiry_ns(message), extras.available_at_ns
            )

    def first_expiry_ns(self, message: Message) -> int:
        own_ns, ttl_ns = (message.extras or Extras()).expires_at_ns, self.settings.ttl_ns
        return own_ns or (message.publish_time_ns + ttl_ns if ttl_ns else 0)

    def seek(self, wanted: set[str], buried: set[str]) -> None:
        """Those are as if they had just come, and the others done, save dead letters that are still there."""
        for record in self.records.values():
            if record.message_id in buried:
                continue
            record.lease_ns, record.failures, record.revived, record.sought = 0, 0, False, True
            record.fate = "" if record.message_id in wanted else "sought"
            record.earliest_ns = (record.message.extras or Extras()).available_at_ns
            record.expires_ns = self.first_expiry_ns(record.message)

    def refresh(self, now_ns: int) -> None:
        """What time did. The broker's timers are exact here, so every end of a lease happened on its instant."""
        leased = [record for record in self.records.values() if record.lease_ns and record.lease_ns <= now_ns]
        for record in sorted(leased, key=lambda record: record.lease_ns):
            self.fail(record, record.lease_ns)
        for record in self.records.values():
            if not record.fate and not record.lease_ns and 0 < record.expires_ns <= now_ns:
                self.bury(record, "expired")

    def fail(self, record: Record, now_ns: int) -> None:
        record.lease_ns = 0
        record.failures += 1
        policy, extras = self.settings.dead_letter_policy, record.message.extras or Extras()
        if 0 < record.expires_ns <= now_ns:
            self.bury(record, "expired")
        elif policy is not None and record.failures >= (extras.max_delivery_attempts or policy.max_delivery_attempts):
            self.bury(record, "dead")
        elif self.settings.retry_policy is not None:
            record.earliest_ns = now_ns + self.settings.retry_policy.backoff_ns(record.failures)

    def bury(self, record: Record, why: str) -> None:
        record.lease_ns = 0
        record.fate = why
        if self.settings.dead_letter_policy is not None:
            record.fate = "dead"
            self.dead.append(record)

    def alive(self) -> list[Record]:
        return [record for record in self.records.values() if not record.fate]

    def pulled(self, deliveries: list[Delivery], consumer: str, now_ns: int) -> list[Record]:
        """Everything that must be true of what one pull gave."""
        records = [self._delivered(delivery, consumer, now_ns) for delivery in deliveries]
        leased = [record for record in self.alive() if record.lease_ns]
        own = [record for record in leased if record.consumer == consumer]
        settings = self.settings
        if records:
            assert not settings.outstanding_messages_max or len(leased) <= settings.outstanding_messages_max
            assert not settings.prefetch or not consumer or len(own) <= settings.prefetch
        if records and settings.prioritised and not settings.priority_aging_ns:
            left = [r for r in self.alive() if not r.lease_ns and r.earliest_ns <= now_ns and not self.keyed(r)]
            for record in left:
                assert self.rank(record) >= max(map(self.rank, records)), f"{record.message_id} was to come before"
        return records

    def keyed(self, record: Record) -> bool:
        return self.settings.enable_message_ordering and record.message.ordering_key != ""

    def rank(self, record: Record) -> tuple[int, int]:
        extras = record.message.extras
        return (-(self.settings.default_priority if extras is None else extras.priority), record.message.sequence)

    def _delivered(self, delivery: Delivery, consumer: str, now_ns: int) -> Record:
        assert delivery.message_id in self.records, f"{self.name}: {delivery.message_id} was never published to it"
        record = self.records[delivery.message_id]
        where = f"{self.name}: {delivery.message_id} ({record.message.data!r})"
        assert delivery.message.data == record.message.data, f"{where} came as {delivery.message.data!r}"
        assert not record.fate, f"{where} is {record.fate}, and was delivered"
        assert not record.lease_ns, f"{where} was delivered while it was leased"
        assert now_ns >= record.earliest_ns, f"{where} came {record.earliest_ns - now_ns} ns too early"
        assert delivery.attempt == record.failures + 1, f"{where}: attempt {delivery.attempt} after {record.failures}"
        assert delivery.deadline_ns > now_ns
        if self.keyed(record):
            self._check_order(record, where)
        record.lease_ns, record.ack_id, record.consumer = delivery.deadline_ns, delivery.ack_id, consumer
        return record

    def _check_order(self, record: Record, where: str) -> None:
        for other in self.records.values():
            if other is record or other.message.ordering_key != record.message.ordering_key:
                continue
            assert not other.lease_ns, f"{where} came while {other.message_id} of its key was outstanding"
            older = other.message.sequence < record.message.sequence
            assert not older or other.fate or other.revived, f"{where} overtook {other.message_id} of its key"
