"""Confluent's client of a schema registry: made from the settings, and asked on a thread of its own.

Credentials are kept out of messages. The thread that needs an answer waits no longer than it may.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import unquote, urlsplit

from processor.config.secrets import without_credentials
from processor.errors import ConfigurationError, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.schema_registry import SchemaRegistryClient


REQUEST_TIMEOUT_S: Final = 10.0
"""Time limit of one request, where the settings name none."""
_NUMBERS: Final = frozenset(
    ("timeout", "cache.capacity", "cache.latest.ttl.sec", "max.retries", "retries.wait.ms", "retries.max.wait.ms")
)


def new_client(settings: Mapping[str, str], shown: str) -> SchemaRegistryClient:
    """Confluent's client, imported late: a topic without a registry needs no HTTP client, and it is slow to import.

    Args:
        settings: those of the section `schema_registry`.
        shown: the address as messages show it.

    Raises:
        ConfigurationError: a setting is wrong, or the client is not installed.
    """
    url = settings.get("url", "").strip()
    if not url:
        raise ConfigurationError("schema_registry has no url; write schema_registry: {url: http://HOST:8081}")
    if "://" not in url:
        raise ConfigurationError("schema_registry.url has no scheme; write schema_registry: {url: http://HOST:8081}")
    try:
        import confluent_kafka.schema_registry  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"a schema registry needs a package that is not installed ({error.name}): pip install 'sowstream[avro]', "
            "'sowstream[json-schema]' or 'sowstream[protobuf]'"
        ) from None
    try:
        if url.startswith("mock://"):
            return _mock(url)
        return _made({"timeout": REQUEST_TIMEOUT_S, "max.retries": 0} | _typed(_credentials_apart(settings)))
    except (ValueError, TypeError, OSError) as error:
        # What the client says of an address holds it, with its credentials.
        said = (
            f": {error}"
            if str(error).startswith(("Unrecognized properties", "ssl.", "not a number", "credentials twice"))
            else ""
        )
        raise ConfigurationError(f"schema_registry {shown}: its settings cannot be used{said}") from None


@cache
def _mock(url: str) -> SchemaRegistryClient:
    """Every user of `mock://NAME` in this process means the same registry: of Confluent's, each would be empty."""
    return _made({"url": url})


def _made(settings: Mapping[str, Any]) -> SchemaRegistryClient:
    from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - see `new_client`

    client: SchemaRegistryClient = SchemaRegistryClient.new_client(dict(settings))
    return client


def _typed(settings: Mapping[str, str]) -> dict[str, str | float]:
    """The client wants numbers where our settings are texts."""
    typed: dict[str, str | float] = {}
    for name, value in settings.items():
        try:
            typed[name] = float(value) if name in _NUMBERS else value
        except ValueError:
            raise ValueError(f"not a number: {name}") from None
    return typed


def _credentials_apart(settings: Mapping[str, str]) -> Mapping[str, str]:
    """The settings with credentials out of the address: HTTP libraries log addresses.

    Raises:
        ValueError: there are others already, or an address has others than another one.
    """
    addresses = [urlsplit(url.strip()) for url in settings["url"].split(",")]
    logins = {(address.username, address.password or "") for address in addresses if address.username is not None}
    if not logins:
        return settings
    if "basic.auth.user.info" in settings:
        raise ValueError("credentials twice: in url and in basic.auth.user.info")
    if len(logins) > 1:
        raise ValueError("credentials twice: those of one address in url differ from those of another")
    ((user, password),) = logins
    return {
        **settings,
        "url": without_credentials(settings["url"]),
        "basic.auth.user.info": f"{unquote(user)}:{unquote(password)}",
    }


_Question = TypeVar("_Question", bound=Hashable)


class Asking(Generic[_Question]):
    """Questions that wait for their answers, one asked after the other. Any number of threads.

    The thread ends when nothing is left to ask, and the process does not wait for it.
    """

    def __init__(self, ask: Callable[[_Question], object]) -> None:
        """Ask nothing yet.

        Args:
            ask: asks one question, for as long as that takes, and keeps the answer; Stop: there was none.
        """
        self._ask = ask
        self._lock = threading.Lock()
        self._asked: dict[_Question, threading.Event] = {}
        self._problems: dict[_Question, str] = {}
        self._has_thread = False

    def wait(self, question: _Question, seconds: float) -> bool:
        """Have a question asked, unless it is being asked already, and wait; whether that came to an end in time."""
        with self._lock:
            is_over = self._asked.get(question)
            if is_over is None:
                is_over = self._asked[question] = threading.Event()
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="schema registry", daemon=True).start()
        return is_over.wait(seconds)

    def problem(self, question: _Question) -> str:
        """The reason for which the last try had no answer; empty if it had one, or was never asked."""
        with self._lock:
            return self._problems.get(question, "")

    def _run(self) -> None:
        while True:
            with self._lock:
                question = next(iter(self._asked), None)
                if question is None:
                    self._has_thread = False
                    return
            problem = ""
            try:
                self._ask(question)
            except Stop as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - nobody hears it here, and the question must come to an end
                problem = f"{type(error).__name__}: {error}"
            with self._lock:
                self._problems.pop(question, None)
                if problem:
                    self._problems = {question: problem}  # One partition asks at a time; no list grows here.
                is_over = self._asked.pop(question)
            is_over.set()
