"""The scenarios, one module for each place where time goes. A new module is named in `MODULES`."""

import os

from benchmarks.harness import Suite

BIG = os.environ.get("BIG", "") not in {"", "0"}
"""Whether to measure with 10,000,000 messages what is measured with 1,000,000 otherwise."""

MODULES = (
    "benchmarks.scenarios.in_process",
    "benchmarks.scenarios.pubsub",
    "benchmarks.scenarios.memory",
    "benchmarks.scenarios.bodies",
    "benchmarks.scenarios.store",
    "benchmarks.scenarios.durable",
    "benchmarks.scenarios.backlog",
    "benchmarks.scenarios.grpc_door",
    "benchmarks.scenarios.load_generator",
    "benchmarks.scenarios.log_door",
    "benchmarks.scenarios.queue_door",
    "benchmarks.scenarios.spark",
    "benchmarks.scenarios.pipeline",
)

suite = Suite()
