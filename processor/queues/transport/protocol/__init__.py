"""Messages between a member of a share group and brokers (KIP-932), for kafka-python.

kafka-python makes classes from Kafka's message definitions: those of these requests are the JSON files here, without
the descriptions. Version 2 of fetches and acknowledgements can limit a fetch to a number of records, and renew leases.
"""

from typing import Final

from kafka.protocol.api_message import ApiMessage

_HERE = __package__

ACQUIRE_EXACTLY: Final = 1
"""`ShareAcquireMode`: no more records than asked for, in place of full batches."""


class ShareGroupHeartbeatRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Joins a group, stays in it, and leaves it."""


class ShareGroupHeartbeatResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """The member's epoch and its partitions."""


class ShareFetchRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Acknowledges records, and asks for further ones."""


class ShareFetchResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Record batches, and the offsets in them that are leased to the member."""


class ShareAcknowledgeRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Acknowledges records only."""


class ShareAcknowledgeResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """The partitions whose acknowledgements were refused."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Asks where share groups stand."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """The answer."""
