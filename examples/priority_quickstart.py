"""Publish and subscribe with priorities: five lines, no asyncio.

Run it: python examples/priority_quickstart.py
"""

from queue import Queue

from heliograph import PriorityPubSub

# The five lines.
pubsub = PriorityPubSub()
pubsub.subscribe("orders", lambda order: print("handled", order.message))
pubsub.publish("orders", {"id": 1, "item": "lamp"}, priority=1)
pubsub.join()

# Priorities: 1 = high, 2 = medium, 3 = low, the default. What is published before anyone subscribes is kept; of what
# waits, the higher priority goes first.
pubsub.publish("mail", "newsletter")
pubsub.publish("mail", "invoice", priority=2)
pubsub.publish("mail", "password reset", priority=1)


@pubsub.subscribe("mail")
def send(mail):
    print(f"sent {mail.message!r} (priority {mail.priority})")


pubsub.join()

# Several subscribers of one topic share its messages; each callback runs in a thread of its own.
done = []
for name in ("anna", "ben"):
    pubsub.subscribe("jobs", lambda job, name=name: done.append((job.message, name)))
pubsub.publish_many("jobs", list(range(10)))
pubsub.join()
print("jobs done:", sorted(job for job, _ in done))

# Acknowledge by hand: the message is held until somebody says that it is processed.
inbox = Queue()
pubsub.subscribe("payments", inbox.put, auto_acknowledge=False)
pubsub.publish("payments", {"amount": 12.5})
payment = inbox.get()
print("received", payment.message)
pubsub.acknowledge(payment.id)

pubsub.close()
assert sorted(job for job, _ in done) == list(range(10))
