# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Makes records of the rows of a view on disk, compiled: what every snapshot and every order of many records begins with.

Why: made one by one in Python, they took twice as long as RocksDB took to read them. The bytes of a row are those of
`stored_partition.py`; only a plain row is read here, of a record that has a version, a value and no other header.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    OFFSET_AT = 16
    TEXTS_AT = 24
    TIMESTAMP_AT = 26
    HEADERS_AT = 34
    VALUE_AT = 38
    VERSIONS = 256  # Low ones are those of most records, and are written once.

cdef object new = tuple.__new__
cdef list headers_of = [None] * VERSIONS


def records_of(rows, Py_ssize_t rows_max, Py_ssize_t bytes_max, dict over, record_type, headers_of_version, other):
    """Return the records of the next rows, and whether there are no more.

    Args:
        rows: keys and rows, an iterator.
        rows_max: how many to take.
        bytes_max: after so many bytes no more are taken.
        over: rows whose key is in it are left out.
        record_type: `Record`.
        headers_of_version: makes the headers of a record that has none but its version.
        other: makes the record of a key and a row in any form.
    """
    cdef list records = []
    cdef object key, row, header
    cdef const char *at
    cdef Py_ssize_t size
    cdef int64_t version, offset, timestamp_ms
    cdef uint16_t texts_size
    cdef uint32_t headers_size
    cdef bint has_over = bool(over)
    while rows_max > 0 and bytes_max > 0:
        pair = next(rows, None)
        if pair is None:
            return records, True
        key = (<tuple>pair)[0]
        row = (<tuple>pair)[1]
        at = PyBytes_AS_STRING(row)
        size = PyBytes_GET_SIZE(row)
        rows_max -= 1
        bytes_max -= size
        if has_over and key in over:
            continue
        if size >= VALUE_AT:
            memcpy(&version, at, 8)
            memcpy(&offset, at + OFFSET_AT, 8)
            memcpy(&texts_size, at + TEXTS_AT, 2)
            memcpy(&timestamp_ms, at + TIMESTAMP_AT, 8)
            memcpy(&headers_size, at + HEADERS_AT, 4)
            if texts_size == 0 and headers_size == 0 and version > 0:
                header = headers_of[version] if version < VERSIONS else None
                if header is None:
                    header = headers_of_version(version)[0]
                    if version < VERSIONS:
                        headers_of[version] = header
                value = PyBytes_FromStringAndSize(at + VALUE_AT, size - VALUE_AT)
                records.append(new(record_type, (key, value, [header], offset, timestamp_ms)))
                continue
        records.append(other(key, row))
    return records, False
