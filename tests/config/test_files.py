"""A configuration that was saved comes back, and what is wrong with a file is said with its name and the attribute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorflow_ipu.config import IPUConfig, SelectionOrder, load, save


def test_a_saved_configuration_comes_back(tmp_path: Path):
    config = IPUConfig()
    config.auto_select_ipus = [2, 4]
    config.selection_order = SelectionOrder.ZIGZAG
    config.matmuls.poplar_options = {"availableMemoryProportion": "0.4"}
    file = tmp_path / "ipu.json"
    save(file, config)
    assert load(str(file)) == config
    assert len(file.read_text().splitlines()) > len(config.to_dict())  # One can read and edit it.
    file.write_text('{"selection_order": "ZIGZAG"}')
    assert load(file) == IPUConfig().from_dict({"selection_order": "ZIGZAG"})


def test_without_a_configuration_that_in_force_is_saved(tmp_path: Path):
    save(tmp_path / "defaults.json")
    assert load(tmp_path / "defaults.json") == IPUConfig()
    config = IPUConfig()
    config.auto_select_ipus = 2
    config.io_tiles.num_io_tiles = 32
    config.configure_ipu_system()
    config.io_tiles.num_io_tiles = 64
    save(tmp_path / "in_force.json")
    loaded = load(tmp_path / "in_force.json")
    assert (loaded.auto_select_ipus, loaded.io_tiles.num_io_tiles) == ([2], 32)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("{", ValueError, "is not JSON"),
        ("\udcff", ValueError, "is no UTF-8 text"),
        ("[1, 2]", TypeError, r"it holds `\[1, 2\]`, and must hold a JSON object"),
        ('{"allow_recompute": true, "allow_recompute": false}', ValueError, "`allow_recompute` is there 2 times"),
        ('{"io_tiles.num_io_tile": 3}', ValueError, r"did you mean `io_tiles\.num_io_tiles`"),
        ('{"io_tiles.num_io_tiles": true}', TypeError, r"`io_tiles\.num_io_tiles` takes exactly `int`"),
        ('{"io_tiles.num_io_tiles": -1}', ValueError, r"`io_tiles\.num_io_tiles=-1` is too low"),
        ('{"selection_order": "AUT"}', ValueError, "`selection_order` has no enumerator `AUT`"),
        ('{"gcl_poplar_options": {"a": 1}}', TypeError, "`gcl_poplar_options` maps text to text"),
        (
            '{"select_ipus": "1", "allow_recompute": 1}',
            TypeError,
            r"[\s\S]*2 faults[\s\S]*`select_ipus`[\s\S]*`allow_recompute`[\s\S]*write `True`",
        ),
        ('{"ipu_model.version": "ipu3", "auto_select_ipus": "4"}', TypeError, r"`auto_select_ipus` takes exactly"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_attribute(
    tmp_path: Path, text: str, kind: type[Exception], words: str
):
    file = tmp_path / "ipu.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(kind, match=rf"`{file}`.*{words}"):
        load(file)


def test_what_is_no_path_or_no_configuration_is_refused(tmp_path: Path):
    with pytest.raises(TypeError, match="`path` must be the path of a file, and `3` is none"):
        load(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`config` must be an `IPUConfig`"):
        save(tmp_path / "ipu.json", {})  # type: ignore[arg-type]
    assert not (tmp_path / "ipu.json").exists()
    with pytest.raises(FileNotFoundError, match=r"ipu\.json"):
        load(tmp_path / "ipu.json")
