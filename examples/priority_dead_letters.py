"""What fails: retries with backoff, dead letters that are looked at and put back. And patterns over topics.

Run it: python examples/priority_dead_letters.py
"""

import logging

from heliograph import PriorityPubSub

logging.getLogger("heliograph").setLevel(logging.ERROR)  # every failure is logged as a warning, with its traceback

# A message is tried again twice, after 0.02 and 0.04 s; then it is a dead letter. `data_dir="…"` would keep everything.
pubsub = PriorityPubSub(max_retries=2, retry_policy={"minimum_backoff": 0.02, "maximum_backoff": 1})
postal_codes = {"Bern": "3000"}
shipped = []


@pubsub.subscribe("orders.new")
def ship(order):
    print(f"  attempt {order.retries + 1}: order {order.message['id']} to {order.message['city']}")
    shipped.append((order.message["id"], postal_codes[order.message["city"]]))  # KeyError: the order is tried again


print("Two orders, one to a city that we do not know:")
pubsub.publish("orders.new", {"id": 1, "city": "Atlantis"})
pubsub.publish("orders.new", {"id": 2, "city": "Bern"}, priority=1)
pubsub.join()

for letter in pubsub.dead_letters("orders.new"):
    print(f"Dead letter: {letter.message}, {letter.reason} after {letter.retries} retries")

print("Now we know it, and put the order back:")
postal_codes["Atlantis"] = "0000"
assert pubsub.retry_dead_letters("orders.new") == 1
pubsub.join()
assert sorted(shipped) == [(1, "0000"), (2, "3000")]
assert pubsub.dead_letters("orders.new") == []

# Patterns, as in RabbitMQ: `*` is one word, `#` any number of words. Each pattern gets a copy of its own, so the
# auditor takes no work from `ship`.
audited = []
pubsub.subscribe("orders.#", lambda event: audited.append((event.topic, event.message["id"])))
pubsub.subscribe("*.cancelled", lambda event: print(f"Cancelled: {event.topic} {event.message['id']}"))
pubsub.publish("orders.new", {"id": 3, "city": "Bern"})
pubsub.publish("orders.cancelled", {"id": 3})
pubsub.publish("orders.paid.late", {"id": 2})
pubsub.publish("bookings.cancelled", {"id": 9})
pubsub.join()
print("Audited:", audited)
assert sorted(audited) == [("orders.cancelled", 3), ("orders.new", 3), ("orders.paid.late", 2)]
assert (3, "3000") in shipped

pubsub.close()
