"""The live table: its rows after messages, and its drawing."""

from rich.console import Console

from processor.cli.live_table import Sheet, picture
from processor.client import Message
from processor.subscriptions.request.record_order import SortOrder


def drawn(sheet: Sheet, rows_max: int | None = None, elapsed_s: float | None = None) -> list[str]:
    """The lines drawn on a terminal of 80 columns."""
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(picture(sheet, "orders", rows_max, elapsed_s))
    return [line.strip() for line in captured.get().splitlines() if line.strip()]


def told(*messages: Message, order: str | None = None) -> Sheet:
    """The sheet after messages, one per second."""
    sheet = Sheet(SortOrder(order))
    for second, message in enumerate(messages):
        sheet.take(message, float(second))
    return sheet


def test_records_and_deltas_become_rows():
    """A record is a row, a delta changes its cells and empties removed ones; each field is a column."""
    sheet = told(
        Message("group_begin", "orders"),
        Message("sow", "orders", "2", {"id": 2, "note": "x", "legs": [1, 2]}),
        Message("sow", "orders", "1", {"id": 1, "state": "new"}),
        Message("group_end", "orders"),
        Message("publish", "orders", "2", {"id": 2, "qty": 7}, delta=True, removed=("/note",)),
    )
    assert sheet.records == {"2": {"id": 2, "legs": [1, 2], "qty": 7}, "1": {"id": 1, "state": "new"}}
    lines = drawn(sheet, 10, 3.2)
    assert lines[0] == "orders"
    assert lines[1].split() == ["id", "state", "legs", "qty"]
    assert [line.split() for line in lines[3:5]] == [["1", "new"], ["2", "[1,2]", "7"]]
    assert lines[-1] == "2 records, 5 messages in 3 s"


def test_an_oof_removes_its_row():
    """An oof removes its row; a repeated snapshot replaces all rows."""
    sheet = told(
        Message("sow", "orders", "1", {"id": 1}),
        Message("sow", "orders", "2", {"id": 2}),
        Message("oof", "orders", "1", {"id": 1}, reason="deleted"),
    )
    assert list(sheet.records) == ["2"]
    sheet.take(Message("group_begin", "orders"), 9.0)
    assert sheet.records == {}


def test_rows_stand_in_the_order_asked_for():
    """Rows are sorted in the order of the subscription; those without room are counted."""
    records = [Message("sow", "orders", str(n), {"id": n, "px": n % 3}) for n in range(5)]
    sheet = told(*records, order="/px DESC,/id")
    assert [key for key, _ in sheet.rows()] == ["2", "1", "4", "0", "3"]
    assert drawn(sheet, 3, 1.0)[-1] == "5 records, 5 messages in 1 s; 2 not shown"
    assert drawn(sheet)[-1] == "5 records"


def test_changed_cells_are_bright_for_a_while():
    """The cells of an update are bright until they are forgotten; those of a snapshot never are."""
    sheet = told(
        Message("sow", "orders", "1", {"id": 1, "qty": 1}),
        Message("publish", "orders", "1", {"id": 1, "qty": 2}, delta=True),
    )
    assert sheet.moved_s == {("1", "qty"): 1.0}
    sheet.forget(1.5)
    assert sheet.moved_s == {}


def test_records_without_fields_have_one_column():
    """A record that is no object, such as bytes, is shown as a whole."""
    sheet = told(Message("sow", "blobs", "a", b"\x00\xff"))
    assert drawn(sheet)[1] == "value"
    assert drawn(sheet)[3] == '"AP8="'
