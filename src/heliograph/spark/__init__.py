"""Topics as a Spark source, a session that starts quietly, and the data pipeline."""
