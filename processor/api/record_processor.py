"""The usual base of a plug-in: records one at a time, typed settings, and one call to write state."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from processor.api.processor import Processor
from processor.errors import RecordRejected
from processor.wire.record_headers import source_header


class Settings(BaseModel):
    """Base of a plug-in's typed settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import TypeVar

    from processor.api.context import Context
    from processor.record import Headers, Record, Value

    SettingsT = TypeVar("SettingsT", bound=BaseModel, default=Settings)
else:
    from typing import TypeVar  # Its default is for type checkers alone.

    SettingsT = TypeVar("SettingsT", bound=BaseModel)

NOTE_BYTES_MAX: Final = 1_000
"""Largest private note of a key: a partition holds all of them in memory, up to 100,000."""

_NOTE: Final = b"note/"


class RecordProcessor(Processor, Generic[SettingsT]):
    """A processor that takes its records one at a time; a failing record rejects itself only.

    ::

        class AlertSettings(Settings):
            at_least: int

        class Alert(RecordProcessor[AlertSettings]):
            input = Input("publish")
            outputs = (Output("sow"), Output("delta"), Output("alerts"))

            def process_record(self, record: Record) -> None:
                count = (self.get(record.key) or {"count": 0})["count"] + 1
                self.put(record.key, {"count": count})
                if count == self.settings.at_least:
                    self.forward("alerts", record.key, {"count": count})

    A record without a key is rejected as `missing_key` by each of these calls.
    """

    context: Context
    """The runtime of this partition; set before `init`."""
    settings: SettingsT
    """The settings, as the model in brackets (or `settings_type`) made them; set before `init`."""

    _record: Record | None = None  # The one in hand; None by the clock.
    _latest: dict[bytes, int] | None = None  # Offset of the last input that SOW has of each key that is redelivered.

    def __init_subclass__(cls, **keywords: Any) -> None:
        """The model in brackets is the `settings_type`, unless the class has one of its own."""
        super().__init_subclass__(**keywords)
        for base in vars(cls).get("__orig_bases__", ()):
            origin, arguments = get_origin(base), get_args(base)
            if "settings_type" not in vars(cls) and isinstance(origin, type) and issubclass(origin, RecordProcessor):
                model = arguments[0]
                if isinstance(model, type) and issubclass(model, BaseModel):
                    cls.settings_type = model

    def bind(self, context: Context, settings: BaseModel) -> None:
        """Set `context` and `settings`. The runtime calls it before `init`, so an `init` need not call this class's."""
        self.context, self.settings = context, cast("SettingsT", settings)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with a partition, and call `setup`."""
        self.bind(context, settings)
        self.setup(self.settings)

    def setup(self, settings: SettingsT) -> None:
        """Prepare for the first record, as by compiling the settings. To be overridden; the base does nothing."""

    def process(self, records: Sequence[Record]) -> None:
        """Pass the records to `process_record` in turn."""
        for number, record in enumerate(records):
            if number and self.context.is_full():
                self.context.stop(record.offset)
                return
            self._record, acts = record, self.context.acts
            try:
                self.process_record(record)
            except RecordRejected as error:
                if self.context.acts > acts:
                    raise  # The runtime takes back what the record has done, and rejects it then.
                self.context.reject(record, error.reason, error.detail)
            finally:
                self._record = None

    @abstractmethod
    def process_record(self, record: Record) -> None:
        """Take one record; raise RecordRejected to send it to the dead-letter topic.

        Of a record that fails nothing stays: its outputs, states and marks are taken back. That is a rollback, which
        creates a new instance; a RecordRejected before the first of them costs none, and finds the instance as it is.
        """

    def get(self, key: bytes | None) -> Value | None:
        """Return the record of a key, parsed afresh: the caller may change it, and `put` it. None if there is none."""
        key = _required(key)
        stored = self.context.state.get_many([key])[key]
        return None if stored is None else self.context.codec.decode_own(stored.value)

    def put(self, key: bytes | None, record: Value, headers: Headers | None = None) -> None:
        """Write the record of a key: state, SOW record, version and delta in one call; None deletes. See `Context.put`.

        In a processor that is `is_repeatable`, the SOW record has the `source` of the input record, and a change that
        SOW has already is not made again.
        """
        key = _required(key)
        if self._is_applied(key):
            return
        if source := self._source():
            headers = [*(headers or ()), *source]
        self.context.put(key, record, headers)

    def delete(self, key: bytes | None, headers: Headers | None = None) -> None:
        """Delete the record of a key, if there is one; its private note stays. See `Context.delete`."""
        self.put(key, None, headers)

    def forward(self, output: str, key: bytes | None, value: Value, headers: Headers | None = None) -> None:
        """Send a value to a declared output other than `sow` and `delta`, as the topic's message type writes it.

        Args:
            output: the name of the output.
            key: the key of the record.
            value: the value; None sends a tombstone.
            headers: its headers.
        """
        data = None if value is None else self.context.codec.encode(value)
        self.context.forward(output, _required(key), data, headers or [])

    def note(self, key: bytes | None) -> bytes | None:
        """Return the private note of a key: a value that no output of the processor shows. None if there is none.

        Notes are marks: committed in the transaction of the records, and restored after a crash. The processor
        declares `Output("mark")` for them. A partition keeps 100,000 marks in memory, and forgets the note not changed
        for longest beyond that. A private state of any number of keys needs a family of its own: `put` it as the full
        record, and let a second processor with `Input("sow", from_underlying=True)` write the public part.
        """
        return self.context.marks.get(_NOTE + _required(key)) or None

    def put_note(self, key: bytes | None, value: bytes) -> None:
        """Set the private note of a key, of 1,000 bytes at most; empty: none.

        Raises:
            ValueError: it is too long.
        """
        if len(value) > NOTE_BYTES_MAX:
            raise ValueError(f"a note of {len(value):,} bytes; a key has room for {NOTE_BYTES_MAX:,}")
        self.context.marks.put(_NOTE + _required(key), value)

    def _is_applied(self, key: bytes) -> bool:
        """True if SOW has the change of this record, or of a later one, to the key: a worker died before its commit."""
        if self._record is None or not self.context.applied:
            return False
        if self._latest is None:
            self._latest = {}
            for offset, keys in self.context.applied.items():
                for changed in keys:
                    self._latest[changed] = max(offset, self._latest.get(changed, -1))
        return self._latest.get(key, -1) >= self._record.offset

    def _source(self) -> Headers:
        if self._record is None or not self.is_repeatable:
            return []
        context = self.context
        return [source_header(f"{context.source_topic}/{context.partition}/".encode(), self._record.offset)]


def _required(key: bytes | None) -> bytes:
    """The key of a record.

    Raises:
        RecordRejected: `missing_key`: there is none.
    """
    if key is None:
        raise RecordRejected("missing_key", "the record has no Kafka key")
    return key
