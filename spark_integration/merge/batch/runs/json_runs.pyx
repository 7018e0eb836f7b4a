# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Merges runs of plain JSON commands of one key, compiled: from the buffers of an Arrow batch into those of another.

The workers' merge takes the runs that are left here (`PartitionMerge`). A record stays the text as which it is
stored, and a delta edits it, as in the workers' `fast_path_json`, whose functions these are. No object is made of a
record: keys, values and headers are read where Arrow has them. Messages that are written as orjson would write them are
not parsed at all.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t

from processor.builtin.delta_merge.fast_path_json cimport CompiledDeltas
from processor.builtin.delta_merge.json_canonical cimport is_canonical
from processor.builtin.delta_merge.json_text cimport Member, Seen, edited, is_shallow, read_member, text
from processor.builtin.delta_merge.key_text cimport is_part, key_field_of, read_key
from spark_integration.merge.batch.runs.arrow_rows cimport ROW_BUFFERS, Buffer, Chunk, Rows, is_word, put, taken
from spark_integration.merge.batch.runs.command_headers cimport DELETE, DELTA, PUBLISH, Command, read_command

cdef enum:
    OUTPUT_BYTES_MAX = 33554432  # of a part of a chunk, before it goes to Spark
    RUN_BYTES_MAX = 1073741824  # of the output of one key: Arrow counts bytes in 31 bits
    RECORD_BYTES_MAX = 4096  # A larger record is merged as an object: a delta would copy it.
    CLIENTS_MAX = 50000

    RAISES = 1
    TREATED = 2

cdef struct High:
    int64_t number
    int64_t run

cdef enum:  # The columns of the sequences.
    CLIENTS = 0
    OFFSETS
    NUMBERS
    KINDS
    LOG_BUFFERS


cdef class JsonRuns:
    """The merge of one partition within a Spark task."""

    cdef CompiledDeltas texts
    cdef object read_acks
    cdef readonly Rows sow, delta
    cdef bint writes_deltas
    cdef int default
    cdef Buffer[LOG_BUFFERS] log
    cdef Py_ssize_t logged
    cdef Buffer highs
    cdef int64_t run_number
    cdef dict ids
    cdef list clients
    cdef bytes client, acks
    cdef Py_ssize_t client_number
    # Of the run at hand.
    cdef bytes record
    cdef int64_t version, ended
    cdef bint is_insert  # Whether the last command began a life.
    cdef Py_ssize_t passed_row  # Of the last command that changed something; -1 without one.
    cdef Py_ssize_t duplicates, of_nothing
    cdef int64_t base, begin, made_offsets

    def __cinit__(self):
        cdef int number
        for number in range(LOG_BUFFERS):
            self.log[number] = Buffer(NULL, 0, 0)
        self.highs = Buffer(NULL, 0, 0)

    def __dealloc__(self):
        cdef int number
        for number in range(LOG_BUFFERS):
            PyMem_Free(self.log[number].data)
        PyMem_Free(self.highs.data)

    def __init__(self, CompiledDeltas texts, read_acks, *, bint deltas, bint publishes, int64_t base, int64_t begin, int64_t made_offsets):
        """Take the merge of texts of the topic and partition.

        Args:
            texts: the merge of texts, with the topic's settings.
            read_acks: parses a header `ack_type`; raises where it is none.
            deltas: whether deltas are output too.
            publishes: whether a record without a command replaces; else it is a delta.
            base, begin, made_offsets: of the versions with which new records begin, see `KeyLives`.
        """
        self.base, self.begin, self.made_offsets = base, begin, made_offsets
        self.texts, self.read_acks = texts, read_acks
        self.writes_deltas, self.default = deltas, PUBLISH if publishes else DELTA
        self.sow, self.delta = Rows(), Rows()
        self.run_number = 0
        self.acks = self.client = None
        self._forget()

    def _forget(self):
        self.ids, self.clients, self.client, self.highs.used = {}, [], None, 0

    def take_log(self):
        """Take the sequences of the records: names of clients, then for each record client, offset, sequence, kind."""
        if not self.log[CLIENTS].used:
            return None
        cdef int number
        cdef list parts = [list(self.clients)]
        for number in range(LOG_BUFFERS):
            parts.append(taken(&self.log[number]))
        if len(self.clients) > CLIENTS_MAX:
            self._forget()
        return parts

    def merge(self, Chunk chunk, Py_ssize_t begin, bint is_continued, bint is_left, state, int64_t ended):
        """Merge the runs from a row on, until the output is large.

        Args:
            chunk: the rows, sorted by key and offset.
            begin: the first row to merge.
            is_continued: whether the first run goes on with a key of an earlier chunk.
            is_left: whether the first run cannot be merged here, for its state.
            state: version and value of the key of the first run, as bytes; None without a record.
            ended: the version with which the last life of that key has ended; 0 if none has.

        Returns:
            The row after the last one; first row and end of each run that is left; for the first run if it is
            continued, and for the last one, key, version, record (None for none), the row whose headers travel on, with
            -1 where nothing changed, whether that row began a life, and the version with which the last life has
            ended; the number of merged rows, and of duplicates and deletes of nothing among them.
        """
        cdef Py_ssize_t row = begin, end, merged = 0, duplicates, of_nothing
        cdef list left = [], ends = []
        cdef bint is_first = True, is_last, is_merged
        cdef Py_ssize_t[ROW_BUFFERS + 2] marks
        cdef int number
        cdef Py_ssize_t[LOG_BUFFERS] logged
        self.duplicates = self.of_nothing = 0
        while row < chunk.rows:
            end = row + 1
            while end < chunk.rows and chunk.is_same_key(row, end):
                end += 1
            is_last = end == chunk.rows
            if not (is_first and is_continued):
                self.run_number += 1
            self.record, self.version, self.ended, self.is_insert = None, 0, 0, False
            if is_first:
                self.ended = ended
            if is_first and state is not None:
                self.version, self.record = state
            self.delta.mark(marks)
            for number in range(LOG_BUFFERS):
                logged[number] = self.log[number].used
            duplicates, of_nothing = self.duplicates, self.of_nothing
            is_merged = not (is_first and is_left) and self.merge_run(chunk, row, end)
            if not is_merged:
                self.delta.back(marks)
                self.duplicates, self.of_nothing = duplicates, of_nothing
                for number in range(LOG_BUFFERS):
                    self.log[number].used = logged[number]
                left.append((row, end))
            else:
                merged += end - row
                if is_last or (is_first and is_continued):
                    ends.append((self.key_of(chunk, row), self.version, self.record, self.passed_row, self.is_insert, self.ended))
                elif self.passed_row >= 0:
                    self.write_last(chunk, row)
            is_first = False
            row = end
            if self.sow.size() + self.delta.size() > OUTPUT_BYTES_MAX:
                break
        return row, left, ends, merged, self.duplicates, self.of_nothing

    cdef bytes key_of(self, Chunk chunk, Py_ssize_t row):
        return PyBytes_FromStringAndSize(chunk.keys + chunk.key_ends[row], chunk.key_ends[row + 1] - chunk.key_ends[row])

    cdef bint merge_run(self, Chunk chunk, Py_ssize_t begin, Py_ssize_t end) except -1:
        """Merge the records of one key; False, and much done, if one is not plain."""
        cdef CompiledDeltas texts = self.texts
        cdef Py_ssize_t row, size
        cdef text at
        cdef Command command
        cdef bint is_deleted = False
        self.passed_row = -1
        at, size = chunk.keys + chunk.key_ends[begin], chunk.key_ends[begin + 1] - chunk.key_ends[begin]
        if size > texts.key_bytes_max or not read_key(at, size, texts.key_fields, texts.key_count):
            return False
        if self.version == 0 and not self.may_begin(chunk, begin):
            return False
        for row in range(begin, end):
            # The base, and two records in one place, of which nothing says which came first.
            if chunk.offsets[row] < 0 or (row > begin and chunk.offsets[row] == chunk.offsets[row - 1]):
                return False
            if not read_command(chunk, row, self.default, &command):
                return False
            if command.acks != NULL and not self.is_ack(command.acks, command.acks_size):
                return False
            at, size = chunk.values + chunk.value_ends[row], chunk.value_ends[row + 1] - chunk.value_ends[row]
            if size > texts.bytes_max:
                return False
            if command.sequence >= 0:
                if chunk.repeats != NULL and chunk.repeats[row] > 1:  # It is rejected for its sequence.
                    return False
                if self.note(chunk, row, &command):
                    self.duplicates += 1
                    continue
            if command.does == DELETE:
                if self.writes_deltas:
                    return False
                if self.version == 0:
                    self.of_nothing += 1
                    continue
                self.ended = self.version + 1
                self.record, self.version, self.passed_row, is_deleted = None, 0, row, True
                continue
            self.is_insert = self.version == 0
            if is_deleted and self.is_insert and not self.may_begin(chunk, begin):
                return False
            if not self.merge_text(at, size, command.does):
                return False
            self.version = self.first_version(chunk.offsets[row]) if self.is_insert else self.version + 1
            self.passed_row = row
            if PyBytes_GET_SIZE(self.record) > texts.bytes_max:
                return False
            if self.writes_deltas:
                self.write(self.delta, chunk, row, texts.delta_text, texts.delta_used, not self.is_insert and texts.edits_used == 0)
                if self.delta.size() > RUN_BYTES_MAX:
                    return False
            elif PyBytes_GET_SIZE(self.record) > RECORD_BYTES_MAX:
                return False
        return True

    cdef bint may_begin(self, Chunk chunk, Py_ssize_t row) except -1:
        """Return whether a key may begin a life in this partition."""
        cdef Py_ssize_t size = chunk.key_ends[row + 1] - chunk.key_ends[row]
        # A key that begins with a NUL may be a reserved one.
        if self.texts.partitions > 1 or (size > 0 and chunk.keys[chunk.key_ends[row]] == 0):
            return self.texts.is_own(self.key_of(chunk, row))
        return True

    cdef int64_t first_version(self, int64_t offset) noexcept:
        """The version of a record that the command at an offset inserts, as `KeyLives.after` gives it."""
        return max(self.base + 2 * (self.begin if offset >= self.made_offsets else offset), self.ended) + 1

    cdef bint merge_text(self, text at, Py_ssize_t size, int does) except -1:
        """Merge one message into the record; False if it is not plain."""
        cdef CompiledDeltas texts = self.texts
        cdef bytes value = None, written
        cdef text end = at + size
        cdef text old
        if not is_canonical(at, end):
            value = PyBytes_FromStringAndSize(at, size)
            try:
                written = texts.write(texts.read(value))
                if written != value and not texts.survives(value, written):
                    return False
            except Exception:  # The slower way raises the same error again.
                return False
            value = written
            at = PyBytes_AS_STRING(value)
            size = PyBytes_GET_SIZE(value)
            end = at + size
        if not is_shallow(at, end, texts.depth_max):
            return False
        if does == PUBLISH:
            if self.writes_deltas or not self.has_key(at, end):
                return False
            self.record = PyBytes_FromStringAndSize(at, size)
            return True
        if self.version == 0:
            self.record = PyBytes_FromStringAndSize(at, size)
            return texts.insert(self.record)
        if at[0] != b'{':
            return False
        old = PyBytes_AS_STRING(self.record)
        if not texts.merge_texts(old, PyBytes_GET_SIZE(self.record), at, size):
            return False
        self.record = edited(self.record, texts.edits, texts.edits_used)
        return self.record is not None

    cdef bint has_key(self, text begin, text end) except -1:
        """Return whether a message is an object with the key fields of the run."""
        cdef CompiledDeltas texts = self.texts
        cdef text at = begin + 1
        cdef Py_ssize_t number
        cdef int present = 0  # A bit of each key field.
        cdef bint more = end - begin > 2 and begin[0] == b'{'
        cdef Member member
        cdef Seen seen
        while more:
            at = read_member(at, end, &member, &seen)
            if at == NULL:
                return False
            more = at[0] == b','
            at += 1
            number = key_field_of(&member, texts.key_fields, texts.key_count)
            if number >= 0:
                if not is_part(&member, &texts.key_fields[number]):
                    return False
                present |= 1 << number
        return present == (1 << texts.key_count) - 1 and at == end

    cdef bint is_ack(self, text at, Py_ssize_t size) except -1:
        """Return whether a header `ack_type` is good; the last one that was is remembered."""
        cdef bytes value
        if self.acks is not None and is_word(at, size, PyBytes_AS_STRING(self.acks), PyBytes_GET_SIZE(self.acks)):
            return True
        value = PyBytes_FromStringAndSize(at, size)
        try:
            self.read_acks(value)
        except Exception:  # The slower way raises the same error again.
            return False
        self.acks = value
        return True

    cdef bint note(self, Chunk chunk, Py_ssize_t row, Command *command) except -1:
        """Note the sequence of a record; whether it is taken for a duplicate.

        Without a column that marks duplicates, one is a record whose sequence is not above those before it of the same
        client and key. That is a guess, which is checked over all keys when the merge is done.
        """
        cdef int32_t number = <int32_t>self.number_of_client(command)
        cdef High *high = (<High *>self.highs.data) + number
        cdef uint8_t kind = RAISES
        if high.run != self.run_number:
            high.run, high.number = self.run_number, -1
        if chunk.repeats[row] if chunk.repeats != NULL else command.sequence <= high.number:
            kind |= TREATED
        elif command.sequence > high.number:
            high.number = command.sequence
        put(&self.log[CLIENTS], &number, sizeof(int32_t))
        put(&self.log[OFFSETS], &chunk.offsets[row], sizeof(int64_t))
        put(&self.log[NUMBERS], &command.sequence, sizeof(int64_t))
        put(&self.log[KINDS], &kind, 1)
        return kind & TREATED != 0

    cdef Py_ssize_t number_of_client(self, Command *command) except -1:
        cdef bytes name
        cdef High unknown
        if self.client is not None and is_word(
            command.client, command.client_size, PyBytes_AS_STRING(self.client), PyBytes_GET_SIZE(self.client)
        ):
            return self.client_number
        name = PyBytes_FromStringAndSize(command.client, command.client_size)
        number = self.ids.get(name)
        if number is None:
            number = self.ids[name] = len(self.clients)
            self.clients.append(name)
            unknown = High(-1, -1)
            put(&self.highs, &unknown, sizeof(High))
        self.client, self.client_number = name, number
        return number

    cdef int write_last(self, Chunk chunk, Py_ssize_t key_row) except -1:
        """Write the SOW record of a finished key, or its tombstone."""
        if self.record is None:
            self.version, self.is_insert = self.ended, False
            return self.write(self.sow, chunk, key_row, NULL, 0, False)
        return self.write(self.sow, chunk, key_row, PyBytes_AS_STRING(self.record), PyBytes_GET_SIZE(self.record), False)

    cdef int write(
        self, Rows rows, Chunk chunk, Py_ssize_t key_row, text value, Py_ssize_t size, bint is_empty
    ) except -1:
        """Write a record, or a tombstone for the value NULL, with its version and the headers that travel on."""
        cdef char[24] digits
        cdef Py_ssize_t place = 24, number, name_size, row = self.passed_row
        cdef int64_t rest = self.version
        cdef text name
        while True:
            place -= 1
            digits[place] = <char>(48 + rest % 10)  # The digit zero is 48.
            rest //= 10
            if rest == 0:
                break
        rows.begin(chunk.keys + chunk.key_ends[key_row], chunk.key_ends[key_row + 1] - chunk.key_ends[key_row], value, size)
        rows.header(b"version", 7, digits + place, 24 - place)
        if self.is_insert:
            rows.header(b"kind", 4, b"insert", 6)
        elif value == NULL:
            rows.header(b"kind", 4, b"delete", 6)
        for number in range(chunk.header_ends[row], chunk.header_ends[row + 1]):
            name, name_size = chunk.names + chunk.name_ends[number], chunk.name_ends[number + 1] - chunk.name_ends[number]
            if is_word(name, name_size, b"client", 6) or is_word(name, name_size, b"sequence", 8):
                rows.header(
                    name, name_size, chunk.texts + chunk.text_ends[number],
                    chunk.text_ends[number + 1] - chunk.text_ends[number],
                )
        if is_empty:
            rows.header(b"empty", 5, b"true", 4)
        return rows.end()


def is_written(bytes message):
    """Return whether a message is merged as it is, without parsing it: orjson would write it just so."""
    return is_canonical(PyBytes_AS_STRING(message), PyBytes_AS_STRING(message) + PyBytes_GET_SIZE(message))
