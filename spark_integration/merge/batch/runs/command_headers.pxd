# cython: language_level=3
"""The headers of a plain command, read where Arrow has them."""

from libc.stdint cimport int64_t

from processor.builtin.delta_merge.json_text cimport text
from spark_integration.merge.batch.runs.arrow_rows cimport Chunk, is_ascii, is_valid, is_word

cdef enum:
    TEXT_BYTES_MAX = 255  # of a client or a command's id
    DIGITS_MAX = 18

cdef enum:  # What a command does.
    DELTA
    PUBLISH
    DELETE

cdef struct Command:
    int does
    int64_t sequence  # -1 without one
    text client
    Py_ssize_t client_size
    text acks  # NULL without any; not checked
    Py_ssize_t acks_size


cdef inline bint read_command(Chunk chunk, Py_ssize_t row, int does, Command *command) noexcept:
    """Read the headers of a row; False if one is rare, or not as it has to be.

    Without a header `command` it does `does`; without a value it is a delete.
    """
    cdef Py_ssize_t number, size, name_size, place
    cdef text name, at
    cdef int seen = 0, flag
    command.does, command.sequence, command.client, command.acks = does, -1, NULL, NULL
    for number in range(chunk.header_ends[row], chunk.header_ends[row + 1]):
        if not is_valid(chunk.texts_valid, chunk.texts_bit + number):
            return False
        name, name_size = chunk.names + chunk.name_ends[number], chunk.name_ends[number + 1] - chunk.name_ends[number]
        at, size = chunk.texts + chunk.text_ends[number], chunk.text_ends[number + 1] - chunk.text_ends[number]
        if is_word(name, name_size, b"client", 6):
            if not 1 <= size <= TEXT_BYTES_MAX or not is_ascii(at, size):
                return False
            flag = 1
            command.client, command.client_size = at, size
        elif is_word(name, name_size, b"sequence", 8):
            if not 1 <= size <= DIGITS_MAX:
                return False
            flag = 2
            command.sequence = 0
            for place in range(size):
                if not b'0' <= at[place] <= b'9':
                    return False
                command.sequence = 10 * command.sequence + (at[place] - 48)  # The digit zero is 48.
        elif is_word(name, name_size, b"command", 7):
            flag = 4
            if is_word(at, size, b"publish", 7):
                command.does = PUBLISH
            elif is_word(at, size, b"delta_publish", 13):
                command.does = DELTA
            elif is_word(at, size, b"sow_delete", 10):
                command.does = DELETE
            else:
                return False
        elif is_word(name, name_size, b"command_id", 10):
            if not 1 <= size <= TEXT_BYTES_MAX or not is_ascii(at, size):
                return False
            flag = 8
        elif is_word(name, name_size, b"ack_type", 8):
            flag = 16
            command.acks, command.acks_size = at, size
        else:
            return False
        if seen & flag:  # The last of a name counts; that is rare.
            return False
        seen |= flag
    if not is_valid(chunk.values_valid, chunk.values_bit + row):
        command.does = DELETE
    return command.sequence < 0 or command.client != NULL
