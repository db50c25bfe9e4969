"""The data pipeline: jobs on a topic's messages, in plain PySpark without RDDs, so that Spark Connect can run them."""
