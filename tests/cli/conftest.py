"""A fixture that executes command lines in this process."""

import sys

import pytest

from tensorflow_ipu import __main__, compat


@pytest.fixture
def execute(monkeypatch, tmp_path, capsys):
    """`execute(*arguments)` executes a command line in an empty folder; returns the status, the output and the error output."""
    monkeypatch.chdir(tmp_path)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def call(*arguments):
        try:
            status = __main__.main([str(argument) for argument in arguments])
        except SystemExit as exc:
            status = exc.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    yield call
    compat.uninstall()
