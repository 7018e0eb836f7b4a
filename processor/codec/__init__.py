"""Bytes ⇄ plain values: one file a message type, found through the entry-point group `sowstream.codecs`."""

from processor.codec.contract import Codec
from processor.codec.registry import load_codec

__all__ = ["Codec", "load_codec"]
