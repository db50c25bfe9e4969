"""Where a topic's messages would be ingested from (protocol 1.14.3). Checked, kept and given back as active.

Nothing is fetched. Whoever runs it begins here: a source is a publisher of its topic like any other.
"""

from __future__ import annotations

from typing import Any

from heliograph.errors import InvalidArgument
from heliograph.server.pubsub.exports import check_bucket

_NEEDED = {
    "aws_kinesis": ("stream_arn", "consumer_arn", "aws_role_arn", "gcp_service_account"),
    "cloud_storage": ("bucket",),
    "azure_event_hubs": ("namespace", "event_hub"),
    "aws_msk": ("cluster_arn", "topic", "aws_role_arn", "gcp_service_account"),
    "confluent_cloud": ("bootstrap_server", "topic", "identity_pool_id", "gcp_service_account"),
}


def normalise(settings: Any) -> None:
    """Check `ingestion_data_source_settings`, and call its source active.

    Raises:
        InvalidArgument: a field that the source needs is missing, or breaks its rule.
    """
    kind = settings.WhichOneof("source")
    if kind is None:
        return
    source = getattr(settings, kind)
    for field in _NEEDED[kind]:
        if not getattr(source, field):
            raise InvalidArgument(f"The {field} of {kind} in the ingestion_data_source_settings must be set.")
    if kind == "cloud_storage":
        check_bucket(source.bucket)
        if source.HasField("text_format") and len(source.text_format.delimiter or "\n") != 1:
            raise InvalidArgument("The delimiter of the text_format must be one character.")
    source.state = type(source).State.Value("ACTIVE")
