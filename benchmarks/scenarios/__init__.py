"""The scenarios, one module for each place where time goes. A new module is named in `MODULES`."""

from benchmarks.harness import Suite

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
)

suite = Suite()
