"""Messages of one ordering key come one at a time (spec 000, "Ordered Message Queue")."""

from heliograph import MessageQueue

queue = MessageQueue.get_instance()
queue.register_topic("user-events")
queue.register_subscription("event-processor", "user-events", message_ordering=True, ack_deadline_seconds=120)

# Publish ordered messages
queue.publish(
    "user-events",
    [
        {"data": b"login", "ordering_key": "user-123"},
        {"data": b"page-view", "ordering_key": "user-123"},
    ],
)

# Pull delivers in order, one at a time per ordering key
(first,) = queue.pull("event-processor", 10)
print(first.ordering_key, first.data.decode())
assert queue.pull("event-processor", 10) == []
queue.ack(first.ack_id)

(second,) = queue.pull("event-processor", 10)
print(second.ordering_key, second.data.decode())
queue.ack(second.ack_id)
