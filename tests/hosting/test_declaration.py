"""A wrong declaration of a processor is one clear error before anything starts."""

import pytest

from processor.api import Input, Output, Processor, RecordProcessor
from processor.cli.main import run as run_command
from processor.errors import ConfigurationError
from processor.hosting.plugins import check_declaration, installed
from processor.testing import ProcessorTestDriver
from tests.hosting.packages import install


class Right(RecordProcessor):
    """Is declared as it should be."""

    input = Input("publish", from_underlying=False)
    outputs = (Output("sow"), Output("publish", repartition=True), Output("mark"))

    def process_record(self, record):
        """Do nothing."""


def changed(**members):
    """The same with other members."""
    return type("Wrong", (Right,), members)


class NoProcess(Processor):
    """Lacks its method `process`."""

    input = Input("publish", from_underlying=False)
    outputs = (Output("sow"),)

    def init(self, context, settings):
        """Begin."""


class Undeclared(RecordProcessor):
    """Declares nothing."""

    def process_record(self, record):
        """Do nothing."""


WRONG = {
    "no class": (Right(), "it is not a Processor; name a subclass of processor.api.Processor"),
    "another class": (dict, "it is not a Processor"),
    "nothing declared": (Undeclared, "`input` is missing; declare input = .*; `outputs` is missing; declare a tuple"),
    "an input that is a text": (changed(input="publish"), "`input` is 'publish'; declare input = "),
    "an input of the class": (changed(input=Input), "`input` is <class"),
    "an unknown input": (changed(input=Input("publsh", from_underlying=False)), "its role is one of publish, sow"),
    "an input of deltas": (changed(input=Input("delta", from_underlying=True)), "its role is one of publish, sow"),
    "an input of a text": (changed(input=Input("sow", from_underlying="orders")), "from_underlying True or False"),
    "a table of messages": (
        changed(keeps_table=True),
        "`keeps_table` is for an input with a name of its own, or the SOW of an underlying topic",
    ),
    "a table of the own state": (changed(input=Input("sow"), keeps_table=True), "or the SOW of an underlying topic"),
    "outputs that are a text": (changed(outputs="sow"), "`outputs` is 'sow'; declare a tuple"),
    "outputs of texts": (changed(outputs=("sow",)), r"`outputs` is \('sow',\); declare a tuple"),
    "one output alone": (changed(outputs=Output("sow")), "declare a tuple"),
    "a misspelt role": (
        changed(outputs=(Output("sow"), Output("dleta"))),
        "declares 'dleta', too close to the role 'delta': write that, or choose another name",
    ),
    "a role in capitals": (changed(outputs=(Output("SOW"),)), "declares 'SOW', too close to the role 'sow'"),
    "a plural": (changed(outputs=(Output("deltas"),)), "declares 'deltas', too close to the role 'delta'"),
    "a name with a dot": (
        changed(outputs=(Output("big.alerts"),)),
        "declares 'big.alerts'; a name is one of publish, sow, delta, ack, mark, or one of the plug-in's own: up to 64",
    ),
    "a name with a blank": (changed(outputs=(Output("big alerts"),)), "declares 'big alerts'; a name is one of"),
    "a name with capitals": (changed(outputs=(Output("Alerts"),)), "declares 'Alerts'; a name is one of"),
    "an empty name": (changed(outputs=(Output(""),)), "declares ''; a name is one of"),
    "a long name": (changed(outputs=(Output("a" * 65),)), "a name is one of"),
    "a name that is no text": (changed(outputs=(Output(7),)), "declares '7'; a name is one of"),
    "an own output twice": (changed(outputs=(Output("sow"), Output("a"), Output("a"))), "declares 'a' twice"),
    "a setup of none": (changed(setup=lambda self: None), "`setup` is no method that takes settings"),
    "no record": (changed(process_record=lambda self: None), "`process_record` is no method that takes record"),
    "an output twice": (changed(outputs=(Output("sow"), Output("sow", repartition=True))), "declares 'sow' twice"),
    "dead letters": (changed(outputs=(Output("sow"), Output("dlq"))), "every processor has dead letters"),
    "a repartition of a number": (changed(outputs=(Output("sow", 1),)), "neither True nor False"),
    "settings of a dict": (changed(settings_type={"at_least": 5}), "`settings_type` is .* it is a pydantic model"),
    "settings of another class": (changed(settings_type=dict), "it is a pydantic model"),
    "repeatable by a text": (changed(is_repeatable="no"), "`is_repeatable` is 'no'; it is True or False"),
    "no process": (NoProcess, "it does not define process"),
    "a process that is no method": (changed(process=None), "`process` is no method that takes records"),
    "a process of two": (changed(process=lambda self, key, value: None), "`process` is no method that takes records"),
    "an init of one": (changed(init=lambda self, context: None), "`init` is no method that takes context, settings"),
    "a punctuate of none": (changed(punctuate=lambda self: None), "`punctuate` is no method that takes now_ms"),
    "a check of one": (changed(check=classmethod(lambda cls, settings: None)), "`check` is no class method that takes"),
    "arguments to make it": (changed(__init__=lambda self, settings: None), "it is made without arguments"),
}


@pytest.mark.parametrize(("processor_type", "problem"), WRONG.values(), ids=WRONG)
def test_a_wrong_declaration_is_refused_by_name_with_what_to_write(processor_type, problem):
    """Each kind of wrong declaration has a sentence of its own, with the name of the processor."""
    with pytest.raises(ConfigurationError, match=f"^processor 'mine': .*{problem}"):
        check_declaration(processor_type, "'mine'")


def test_one_error_lists_all_problems_of_a_declaration():
    """The author of a declaration needs one try to mend it."""
    with pytest.raises(ConfigurationError, match=r"`input` is 'x'.*; `outputs` is 'y'.*; `settings_type` is"):
        check_declaration(changed(input="x", outputs="y", settings_type=3), "'mine'")


def test_right_ones_pass():
    """The installed processors, a list of outputs, own outputs, and a `process` with other parameters are accepted."""
    check_declaration(Right, "right")
    check_declaration(changed(outputs=(Output("alerts"), Output("big_ones-2"))), "own outputs")
    check_declaration(changed(outputs=[Output("sow")], process=lambda self, *records: None), "right")
    for name, processor_type in installed().items():
        check_declaration(processor_type, name)


def test_an_installed_plugin_with_a_wrong_declaration_is_named(tmp_path, monkeypatch, capsys):
    """The error has the entry point and its target, and `sowstream plugins` shows it."""
    install(tmp_path, "wrong-plugin", {"counting": "wrong_plugin:Wrong"})
    (tmp_path / "wrong_plugin.py").write_text(
        "from processor.api import Input, RecordProcessor\n"
        "class Wrong(RecordProcessor):\n"
        "    input = Input('publish', from_underlying=False)\n"
        "    outputs = 'sow'\n"
        "    def process_record(self, record): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"^processor 'counting' \(wrong_plugin:Wrong\): `outputs` is 'sow'"):
        installed()["counting"]
    assert run_command(["plugins"]) == 0
    assert "(wrong_plugin:Wrong): `outputs` is 'sow'" in capsys.readouterr().out


def test_the_driver_refuses_a_wrong_declaration_as_well():
    """The plug-in's own tests fail with the same sentence."""
    with pytest.raises(ConfigurationError, match="processor Wrong: `outputs` is 'sow'"):
        ProcessorTestDriver(changed(outputs="sow"), {}, name="copies")
