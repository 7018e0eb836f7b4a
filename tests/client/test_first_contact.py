"""A new user's calls: settings in each form, keys by value, event loops, frames."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from processor.client import AsyncClient, Client
from processor.client.subscribe.frames import arrow_table, html_table, pandas_frame
from processor.config import Config
from processor.errors import BrokerUnavailable, ConfigurationError, RecordRejected, SowstreamError
from tests.client.family import Family
from tests.client.test_publish import published

ROOT = Path(__file__).parents[2]
TREE = {"kafka": {"bootstrap.servers": "127.0.0.1:1"}, "topics": {"orders": {"key": ["/id"]}}}


class TestSettings:
    """A client takes its settings as a Config, a mapping, or a path."""

    def test_a_mapping_and_a_path_are_settings(self, tmp_path: Path) -> None:
        """A mapping, a path as text and a Path give the same settings as a Config."""
        file = tmp_path / "s.yaml"
        file.write_text("kafka: {bootstrap.servers: '127.0.0.1:1'}\ntopics: {orders: {key: [/id]}}\n")
        for source in (TREE, str(file), file, Config.model_validate(TREE)):
            with Client("desk", source) as client:
                assert client.config.topics["orders"].key == ("/id",)

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ({"topics": {"orders": {"ky": []}}}, "did you mean"),
            ({"bootstrap.servers": "x:1"}, "belongs into the section 'kafka'"),
            (5, "a mapping or the path of a file, and no int"),
            ("nowhere.yaml", "nowhere.yaml: No such file"),
        ],
    )
    def test_other_values_are_refused_with_the_reason(self, source, problem) -> None:
        """Wrong settings are a ConfigurationError, and no AttributeError."""
        with pytest.raises(ConfigurationError, match=problem):
            Client("desk", source)

    def test_the_wait_for_kafka_is_a_setting(self) -> None:
        """With `connect_timeout_s`, an absent Kafka is reported soon, with its address and reason."""
        client = Client("desk", TREE | {"connect_timeout_s": 0.2})
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1: nothing listens on this port"):
            client.get("orders", "7")
        client.close()

    def test_a_closed_client_refuses_calls(self) -> None:
        """A call of a closed client is an error, after a `with` block as after `close`; its text shows that it is."""
        with Client("desk", TREE) as in_block:
            assert repr(in_block) == "<Client 'desk' 127.0.0.1:1>"
        closed = Client("desk", TREE)
        closed.close()
        closed.close()
        for client in (in_block, closed):
            for call in (
                lambda: client.publish("orders", {"id": 7}),  # noqa: B023 - called at once
                lambda: client.get("orders", 7),  # noqa: B023
                lambda: client.queue("q"),  # noqa: B023
            ):
                with pytest.raises(SowstreamError, match="the client 'desk' is closed: open another one"):
                    call()
            assert repr(client) == "<Client 'desk' 127.0.0.1:1 closed>"


@pytest.mark.broker
class TestKeys:
    """Each call takes a key as its text or as its value."""

    def test_a_number_is_a_key(self, family: Family, client: Client) -> None:
        """A number finds the record of its text; an object is a message with the key field."""
        family.sow("7", {"id": 7, "qty": 1})
        for key in ("7", 7, {"id": 7, "more": 1}):
            message = client.get(family.name, key)
            assert message is not None, key
            assert message.data == {"id": 7, "qty": 1}
        assert client.get(family.name, 8) is None

    def test_a_view_takes_the_keys_that_get_takes(self, family: Family, client: Client) -> None:
        """`view[...]` and `in` find a record by each form of its key; another value is in no view."""
        family.sow("7", {"id": 7, "qty": 1})
        with client.view(family.name) as view:
            for key in ("7", 7, {"id": 7, "more": 1}):
                assert key in view, key
                assert view[key] == {"id": 7, "qty": 1}
            for other in ("8", 8, None, [1, 2], object()):
                assert other not in view
            with pytest.raises(KeyError):
                view[8]
            assert view.get(7) == {"id": 7, "qty": 1}

    def test_a_closed_view_has_its_last_records_and_says_so(self, family: Family, client: Client) -> None:
        """The records of a view stay as they are after `close`, and its text shows that they change no more."""
        family.sow("7", {"id": 7, "qty": 1})
        view = client.view(family.name)
        assert repr(view) == "<View with 1 record>"
        view.close()
        assert (repr(view), view[7], view.refresh()) == ("<View with 1 record, closed>", {"id": 7, "qty": 1}, [])

    def test_publishers_take_the_keys_that_get_takes(self, family: Family, client: Client) -> None:
        """The Kafka key of each command is the text of the key; a value that is no key is refused, and nothing sent."""
        client.publish(family.name, {"id": 7}, key=7)
        client.delta_publish(family.name, {"qty": 1}, key={"id": 7})
        client.sow_delete(family.name, 7)
        client.sow_delete(family.name, keys=iter([7, "7"]))
        client.flush(60)
        keys = [record.key for records in published(family).values() for record in records]
        assert keys == [b"7"] * 4
        with pytest.raises(RecordRejected, match=r"missing_key: \[1, 2\] is no key of"):
            client.publish(family.name, {"id": 7}, key=[1, 2])

    @pytest.mark.parametrize("key", [None, {"other": 1}, [1, 2], {"id": {}}])
    def test_a_value_that_is_no_key_is_refused(self, family: Family, client: Client, key) -> None:
        """Other values are an error that names the key field."""
        with pytest.raises(ConfigurationError, match="is no key of"):
            client.get(family.name, key)


@pytest.mark.broker
def test_an_event_loop_publishes_reads_and_follows(family: Family) -> None:
    """`async with Client` has awaitable calls; a subscription is read with `async for`, and the loop goes on."""
    family.sow("7", {"id": 7, "qty": 1})

    async def program() -> list[object]:
        async with Client("desk", family.config) as client:
            assert isinstance(client, AsyncClient)
            assert await client.publish(family.name, {"id": 8}) is None
            await client.flush(120)
            message = await client.get(family.name, 7)
            view = await client.view(family.name)
            subscription = await client.sow(family.name)
            seen = [one.command async for one in subscription]
            records = dict(view)
            view.close()
            assert message is not None
            return [message.data, records, seen]

    data, records, commands = asyncio.run(program())
    assert data == {"id": 7, "qty": 1}
    assert records == {"7": {"id": 7, "qty": 1}}
    assert commands == ["group_begin", "sow", "group_end"]


class TestFrames:
    """Records become Arrow tables, pandas frames and HTML tables."""

    ROWS = (("1", {"id": 1, "px": 2.5}), ("2", {"id": 2, "tags": ["a"], "in": {"x": 1}}))

    def test_columns_are_the_fields_of_all_records(self) -> None:
        """A field that a record lacks is null; objects are structs; the key may have a column."""
        pytest.importorskip("pyarrow")
        table = arrow_table(self.ROWS, "key")
        assert table.column_names == ["key", "id", "px", "tags", "in"]
        assert table.to_pylist()[0] == {"key": "1", "id": 1, "px": 2.5, "tags": None, "in": None}
        assert table.to_pylist()[1]["in"] == {"x": 1}

    def test_no_records_are_an_empty_table(self) -> None:
        """Without records there are no columns but that of the keys."""
        pytest.importorskip("pyarrow")
        assert arrow_table((), "key").num_rows == 0

    def test_a_field_of_several_types_is_named(self) -> None:
        """A field that has numbers and texts is refused with its name and the way to leave it out."""
        pytest.importorskip("pyarrow")
        with pytest.raises(ConfigurationError, match=r"field 'x' has values.*select=-/x"):
            arrow_table([("1", {"x": 1}), ("2", {"x": "a"})])

    def test_pandas(self) -> None:
        """A frame has a row for each record."""
        pytest.importorskip("pandas")
        frame = pandas_frame(self.ROWS)
        assert list(frame["id"]) == [1, 2]

    def test_html_is_escaped_and_cut(self) -> None:
        """A notebook shows the first records; markup in keys and values is text."""
        shown = html_table({"<b>": {"<i>": "<script>"}} | {str(number): {"n": number} for number in range(30)})
        assert "<script>" not in shown
        assert "&lt;script&gt;" in shown
        assert "31 records, 20 shown" in shown

    @pytest.mark.broker
    def test_a_snapshot_and_a_view_become_tables(self, family: Family, client: Client) -> None:
        """`sow().to_arrow()`, `view.to_pandas()` and a view's HTML have the records of the topic."""
        pytest.importorskip("pandas")
        family.sow("1", {"id": 1, "qty": 5})
        family.sow("2", {"id": 2, "qty": 6})
        assert client.sow(family.name, order_by="/id").to_arrow().to_pydict() == {"id": [1, 2], "qty": [5, 6]}
        with client.view(family.name) as view:
            assert sorted(view.to_pandas(key_column="key")["key"]) == ["1", "2"]
            assert "<th>qty</th>" in view._repr_html_()

    @pytest.mark.broker
    def test_duckdb_and_polars_read_the_arrow_table(self, family: Family, client: Client) -> None:
        """The recipes of the how-to: SQL by DuckDB, and a polars frame."""
        duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
        family.sow("1", {"id": 1, "qty": 5})
        family.sow("2", {"id": 2, "qty": 6})
        orders = client.sow(family.name).to_arrow()
        assert duckdb.sql("SELECT sum(qty) FROM orders").fetchall() == [(11,)]
        assert polars.from_arrow(orders)["qty"].sum() == 11


def test_the_client_imports_without_fcntl() -> None:
    """On Windows there is no `fcntl`: the client and the command line do without it until they lock a file."""
    program = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import processor.client, processor.cli.main, processor.client.feeds.stored_view, processor.trial.broker\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.long
def test_programs_of_the_readme_pass_mypy(tmp_path: Path) -> None:
    """The Python of README.md, and typical calls with and without acks, pass `mypy --strict`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = readme.split("```python\n")[1].split("```")[0]
    calls = (
        "from sowstream import Client\n"
        "from sowstream.spark import read_sow\n"
        "client = Client('desk', {'topics': {'orders': {}}})\n"
        "client.publish('orders', {'id': 1}, ack='persisted').result(120).version\n"
        "client.delta_publish('orders', {'id': 1}, sequence=5)\n"
        "client.sow_delete('orders', filter='/qty > 5', ack='stats').result()\n"
        "print(read_sow)\n"
    )
    (tmp_path / "readme.py").write_text(program)
    (tmp_path / "calls.py").write_text(calls)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "readme.py", "calls.py"],
        cwd=tmp_path, env=os.environ | {"MYPYPATH": f"{ROOT}:{ROOT}/processor/facade"},
        capture_output=True, text=True, check=False, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
