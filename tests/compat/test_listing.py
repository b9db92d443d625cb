"""The list of all names says of each what it is, and the page of documentation shows it."""

from pathlib import Path

from tensorflow_ipu.compat import _ipu_names, _keras_names, _listing, _names, _table
from tensorflow_ipu.compat._listing import State
from tensorflow_ipu.compat._table import Absent

PAGE = Path(__file__).resolve().parents[2] / "docs" / "porting.md"


def test_page_shows_the_names_as_they_are_now():
    assert _listing.markdown() in PAGE.read_text(), "the names have changed: run `make names`"


def test_every_name_of_the_table_is_listed_once_with_what_it_is():
    entries = _listing.entries()
    assert len({entry.full for entry in entries}) == len(entries)
    listed = {(entry.module, entry.name): entry for entry in entries}
    for module in (*_ipu_names.MODULES, *(name for name in _keras_names.MODULES if name.startswith("keras.ipu"))):
        short = module.replace("tensorflow.python.ipu", "ipu")
        if short.startswith("tensorflow"):
            continue  # The SDK's generated code.
        for name, target in _names.MODULES[module].names.items():
            exists = listed[short, name].state in (State.WORKS, State.RECORDED)
            assert exists is not isinstance(target, Absent), (module, name)
            if exists:
                assert name in _names.existing(module)


def test_every_option_of_the_configuration_is_listed_and_what_changes_no_result_exists():
    options = {entry.name: entry for entry in _listing.entries() if entry.name.startswith("IPUConfig.")}
    assert len(options) == 57
    assert options["IPUConfig.auto_select_ipus"].state is State.WORKS
    assert options["IPUConfig.io_tiles.num_io_tiles"].words == "for the machine's report"
    assert options["IPUConfig.compilation_poplar_options"].state is State.RECORDED
    targets = {target for old in _names.MODULES.values() for target in old.names.values()}
    assert targets >= _table.RECORDED.keys()
