"""A command line in this process."""

import sys

import pytest

from tensorflow_ipu import __main__, compat


@pytest.fixture
def here(monkeypatch, tmp_path, capsys):
    """Executes a command line in this process, from an empty folder: `here(*words)` is status, output, errors."""
    monkeypatch.chdir(tmp_path)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def call(*words):
        try:
            status = __main__.main([str(word) for word in words])
        except SystemExit as exc:
            status = exc.code
        said = capsys.readouterr()
        return status, said.out, said.err

    yield call
    compat.uninstall()
