"""Schemas of messages (pubsub-protocol.md 1.15): what a definition means, and whether data follow it.

`schema.py` is the way in; `avro.py` and `protobuf.py` know their languages. Nothing here knows of topics, revisions or
requests, so that whoever reads messages later (a pipeline, say) understands them exactly as the door that let them in.
"""
