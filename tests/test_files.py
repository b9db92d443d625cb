"""Files are written completely or not at all, with the permissions of `open`."""

import errno
import os
import stat
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tensorflow_ipu._base import files


def in_process(code, *arguments, stdout=subprocess.PIPE):
    """Runs code that uses `files` in an interpreter without TensorFlow."""
    head = f"import runpy, sys; files = runpy.run_path({files.__file__!r})\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, check=True).stdout


def test_file_that_fails_leaves_the_last_one_and_nothing_else(tmp_path):
    path = tmp_path / "report.json"
    files.write(path, "whole\n")

    def fail():
        with files.replacing(path) as file:
            file.write(b"half")
            file.flush()
            assert path.read_text() == "whole\n"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("report.json", "whole\n")]


# The limit of the file size emulates a disk that becomes full while a file is written.
def test_full_disk_leaves_the_last_file_and_is_an_error_of_its_path(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("whole")
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            files["write"](sys.argv[1], "x" * 100_000)
        except OSError as exc:
            print(exc)
    """
    assert in_process(code, path) == f"[Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}: '{path}'\n"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.json", "whole")]


def test_errors_name_the_path_of_the_user(tmp_path):
    for path, kind in (
        (tmp_path / "none" / "a", FileNotFoundError),
        (tmp_path, IsADirectoryError),
        (tmp_path / "file" / "a", NotADirectoryError),
    ):
        (tmp_path / "file").touch()
        with pytest.raises(kind) as raised:
            files.write(path, "text")
        assert raised.value.filename == str(path)
    with pytest.raises(OSError, match="No space left on device"):
        files.write("/dev/full", "text")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_permissions_are_those_of_open_and_an_existing_file_keeps_its_own(tmp_path):
    (tmp_path / "opened").open("w").close()
    files.write(tmp_path / "written", "text")
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "opened").stat().st_mode
    (tmp_path / "written").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(tmp_path / "written", 12345, 54321)
    original = (tmp_path / "written").stat()
    files.write(tmp_path / "written", "other")
    replaced = (tmp_path / "written").stat()
    assert (replaced.st_mode, replaced.st_uid, replaced.st_gid) == (original.st_mode, original.st_uid, original.st_gid)
    assert replaced.st_ino != original.st_ino


def test_links_are_followed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("there", "new"):
        (tmp_path / name).symlink_to(folder / name)
    (folder / "there").write_text("old")
    for name in ("there", "new"):
        files.write(tmp_path / name, "text")
        assert (tmp_path / name).is_symlink()
        assert (folder / name).read_text() == "text"
    assert len(list(folder.iterdir())) == 2


def test_pipe_and_standard_output_are_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    files.write(tmp_path / "pipe", "text")
    reader.join(60)
    assert read == ["text"]
    code = """
        print("before", flush=True)
        files["write"]("/dev/stdout", "text\\n")
        files["write"]("/dev/fd/1", "more\\n")
    """
    assert in_process(code) == "before\ntext\nmore\n"
    # Standard output is a regular file. If it were replaced, the process would lose it.
    with (tmp_path / "out").open("ab") as out:
        number = out.fileno()
        in_process(code, stdout=out)
        assert os.fstat(number).st_ino == (tmp_path / "out").stat().st_ino
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["out", "pipe"]


def test_file_that_nothing_can_take_the_place_of_is_written_in_place(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text("old")
    inode = path.stat().st_ino

    def busy(*_):  # A container may mount a single file.
        raise OSError(errno.EBUSY, "busy", "some name")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", busy)
        files.write(path, "text")
    assert (path.read_text(), path.stat().st_ino) == ("text", inode)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "access", lambda path, _: Path(path) != tmp_path)
        files.write(path, "more")
    assert (path.read_text(), path.stat().st_ino) == ("more", inode)
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_writers_of_one_file_never_mix(tmp_path):
    path = tmp_path / "report.json"

    def write(number):
        for _ in range(20):
            with files.replacing(path) as file:
                for _ in range(5):
                    file.write(str(number).encode() * 10_000)
                    file.flush()
            assert len(set(path.read_text())) == 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(path.read_text()) == 50_000
    assert len(list(tmp_path.iterdir())) == 1
