"""The classes that kafka-python makes of the message definitions beside this file."""

from kafka.protocol.api_message import ApiMessage

_HERE = __package__


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """Asks where share groups stand."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_HERE):  # type: ignore[call-arg, misc]
    """The answer."""
