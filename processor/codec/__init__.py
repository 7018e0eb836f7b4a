"""Bytes ⇄ plain values: one file a message type, found through the entry-point group `sowstream.codecs`."""

from processor.codec.contract import Codec, CodecOptions, check_options, codec_of, codec_options, load_codec

__all__ = ["Codec", "CodecOptions", "check_options", "codec_of", "codec_options", "load_codec"]
