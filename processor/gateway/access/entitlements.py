"""The rights of roles and users on topics, from `entitlements.yaml`; a right that is not listed is denied.

::

    roles:
      desk: {orders: {read: "/desk = 'x'", select: "-/secret", publish: "/desk = 'x'", delete: false}}
    users:
      ann: {orders: {read: true, publish: true, delete: true}}
    operators: {users: [ann], roles: [operations]}  # may see the status of the installation
    revoked: [token-id]         # claims `jti` of tokens that are not accepted any more

A user has the rights of its own entry and of its roles together: the filters are joined by OR. Where one of these
rights shows every record in full, so does the sum; otherwise only fields that all of their select lists include are
shown, so that no record is shown with more fields than the right that it came by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import yaml
from pydantic import Field, ValidationError, field_validator

from processor.config.section import Section
from processor.config.yaml_values import parse, problem_of
from processor.errors import ConfigurationError, FilterError, unknown_name
from processor.filter import Filter, compile_filter
from processor.gateway.access.identity import Identity
from processor.merge import KeyFields
from processor.subscriptions.request.entitlement import Entitlement
from processor.subscriptions.request.select import Select

_KNOWN_LATER: Final = frozenset(("CORRELATION_ID", "LAST_UPDATED", "MESSAGE_SIZE"))
"""Functions whose value for a record is not known before a worker has written it."""


class _Grant(Section):
    """The rights of one role or user on one topic, as the file has them."""

    read: bool | str = False
    select: str | None = None
    publish: bool | str = False
    delete: bool = False

    @field_validator("select", mode="before")
    @classmethod
    def _is_written(cls, value: object) -> object:
        """Refuse a list that is left empty, which hides nothing and looks as if it hid all."""
        if value is None:
            raise ValueError("nothing stands here, so that all fields are shown: write the fields, or remove the line")
        return value


class _Operators(Section):
    """The users and roles that see the status of the installation: its workers, their hosts, each topic's lag."""

    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


class _File(Section):
    roles: dict[str, dict[str, _Grant]] = Field(default_factory=dict)
    users: dict[str, dict[str, _Grant]] = Field(default_factory=dict)
    operators: _Operators = Field(default_factory=_Operators)
    revoked: Annotated[tuple[str, ...], Field(max_length=1_000_000)] = ()


class Rights(NamedTuple):
    """The rights of one identity on one topic."""

    read: Entitlement | None = None
    """The records and fields that it may see; None: none."""
    may_publish: bool = False
    """True if it may publish at all."""
    publish: Filter | None = None
    """Must match a record before and after a command; None: any may be published, if `may_publish`."""
    delete: bool = False
    """True if it may delete."""

    @property
    def reads_all(self) -> bool:
        """True if it may see every record in full."""
        return self.read is not None and self.read.filter is None and self.read.select is None

    @property
    def text(self) -> str:
        """Equal for equal rights to read."""
        return "\0\0" if self.read is None else self.read.text


NO_RIGHTS: Final = Rights()
EVERYTHING: Final = Entitlement(None, None)
"""Every record in full."""
ALL_RIGHTS: Final = Rights(EVERYTHING, may_publish=True, publish=None, delete=True)
"""The rights of everybody, where there is no file of entitlements."""


class _Content(NamedTuple):
    """What the file said when it was read, and the rights that follow from it."""

    file: _File
    """The file."""
    revoked: frozenset[str]
    """Its revoked tokens."""
    rights: dict[tuple[str, tuple[str, ...], str], Rights]
    """The rights that were asked for, by user, roles and topic."""


class Entitlements:
    """The rights of every identity. Any thread may read the file again, while the event loop asks for rights."""

    def __init__(
        self,
        path: Path | None,
        keys: Callable[[str], KeyFields],
        topics: tuple[str, ...],
        bytes_topics: Collection[str] = (),
    ) -> None:
        """Read the file.

        Args:
            path: the file; None: everybody may do everything.
            keys: the key fields of a topic, which are always shown.
            topics: the topics that the gateway serves.
            bytes_topics: those whose records are nothing but bytes.

        Raises:
            ConfigurationError: the file cannot be read, or says something that cannot be meant.
        """
        self.path: Final = path
        self._keys = keys
        self._topics = topics
        self._bytes_topics = bytes_topics
        # Replaced as one: rights of a former file are never kept as those of the next one.
        self._content = _Content(_File(), frozenset(), {})
        self.load()

    def load(self) -> None:
        """Read the file again. After an error the rights stay as they are."""
        if self.path is None:
            return
        try:
            text = self.path.read_text(encoding="utf-8")
            file = _File.model_validate(parse(text) or {})
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{self.path}: {type(error).__name__}: {error}") from None
        except yaml.YAMLError as error:
            raise ConfigurationError(f"{self.path}: {problem_of(error)}") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ConfigurationError(f"{self.path}: {place}: {first['msg']}") from None
        self._check(file)
        self._content = _Content(file, frozenset(file.revoked), {})

    def is_revoked(self, identity: Identity) -> bool:
        """Return whether the token of an identity is listed as revoked."""
        return identity.token_id is not None and identity.token_id in self._content.revoked

    def is_operator(self, identity: Identity) -> bool:
        """Return whether an identity may see the status of the installation."""
        operators = self._content.file.operators
        listed = identity.user in operators.users or not set(identity.roles).isdisjoint(operators.roles)
        return self.path is None or (listed and not self.is_revoked(identity))

    def rights(self, identity: Identity, topic: str) -> Rights:
        """The rights of an identity on a topic."""
        if self.path is None:
            return ALL_RIGHTS
        content, name = self._content, (identity.user, identity.roles, topic)
        rights = content.rights.get(name)
        if rights is None:
            if len(content.rights) > 100_000:
                content.rights.clear()
            rights = content.rights[name] = self._combined(content.file, identity, topic)
        return rights

    def _combined(self, file: _File, identity: Identity, topic: str) -> Rights:
        entries: list[Mapping[str, _Grant] | None] = [file.users.get(identity.user)]
        entries += [file.roles.get(role) for role in identity.roles]
        grants = [entry[topic] for entry in entries if entry is not None and topic in entry]
        readers = [grant for grant in grants if grant.read is not False]
        publishers = [grant.publish for grant in grants if grant.publish is not False]
        publish = None if True in publishers else _any_of([text for text in publishers if isinstance(text, str)])
        return Rights(
            self._reading(readers, topic) if readers else None,
            may_publish=bool(publishers),
            publish=publish,
            delete=any(grant.delete for grant in grants),
        )

    def _reading(self, readers: list[_Grant], topic: str) -> Entitlement:
        if any(grant.read is True and grant.select is None for grant in readers):
            return EVERYTHING
        own_filter = (
            None
            if any(grant.read is True for grant in readers)
            else _any_of([grant.read for grant in readers if isinstance(grant.read, str)])
        )
        select: Select | None = None
        for text in dict.fromkeys(grant.select for grant in readers if grant.select is not None):
            one = Select(text, self._keys(topic))
            select = one if select is None else Select.intersection(select, one)
        return Entitlement(own_filter, select)

    def _check(self, file: _File) -> None:
        """Compile all that the file says once, so that a mistake is reported when it is read."""
        for section, entries in (("roles", file.roles), ("users", file.users)):
            for name, topics in entries.items():
                for topic, grant in topics.items():
                    place = f"{self.path}: {section}.{name}.{topic}"
                    if topic not in self._topics:
                        raise ConfigurationError(f"{place}: {unknown_name('topic', topic, list(self._topics))}")
                    try:
                        for text in (grant.read, grant.publish):
                            if isinstance(text, str) and compile_filter(text).moves_by_itself:
                                raise ConfigurationError(
                                    f"{place}: the answer of {text!r} changes with the clock; use a field of the record"
                                )
                        if isinstance(grant.publish, str) and (later := _known_later(grant.publish)):
                            raise ConfigurationError(
                                f"{place}: {later} is not known of a record that is published; use a field of it"
                            )
                        if grant.select is not None:
                            if topic in self._bytes_topics:
                                raise ConfigurationError(
                                    f"{place}.select: its records are bytes, of which no field can be hidden: remove "
                                    "the line, and the right to read if they may not be seen whole"
                                )
                            Select(grant.select, self._keys(topic))
                    except FilterError as error:
                        raise ConfigurationError(f"{place}: {error}") from None


def _known_later(text: str) -> str:
    """The functions of a filter that a record to be published has no value for."""
    return ", ".join(sorted(compile_filter(text).functions & _KNOWN_LATER))


def _any_of(texts: list[str]) -> Filter | None:
    if not texts:
        return None
    return compile_filter(texts[0] if len(texts) == 1 else " OR ".join(f"({text})" for text in texts))
