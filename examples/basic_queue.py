"""The queue by itself: register, publish, pull, acknowledge. No event loop (spec 000, "Basic Queue Operations")."""

from heliograph import MessageQueue

queue = MessageQueue.get_instance()

# Register topic and subscription
queue.register_topic("orders")
queue.register_subscription("order-processor", "orders", ack_deadline_seconds=60)

# Publish messages
message_ids = queue.publish("orders", [{"data": b"Order #1", "attributes": {"orderId": "12345"}}])
print("published", message_ids)

# Pull messages
messages = queue.pull("order-processor", 10)
for message in messages:
    print("pulled", message.data.decode(), message.attributes)

    # Ack message
    queue.ack(message.ack_id)

assert queue.pull("order-processor", 10) == []
