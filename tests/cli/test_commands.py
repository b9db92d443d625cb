"""The command line: names, help, completion, closed pipes, and error messages."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tensorflow_ipu as ipu
from tensorflow_ipu.cli import info, programs, run
from tensorflow_ipu.cli.commands import whole_parser
from tensorflow_ipu.cli.parsers import COMMANDS
from tensorflow_ipu.compat import _names
from tensorflow_ipu.config import IPUConfig

ROOT = Path(__file__).parents[2]
CONSOLE = "import sys\nfrom tensorflow_ipu.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """`console(*arguments)` runs the console script in a new interpreter, which lists imported modules on stderr."""
    script = tmp_path_factory.mktemp("bin") / "tensorflow-ipu"
    script.write_text(CONSOLE)

    def call(*arguments, **options):
        command = [sys.executable, "-X", "importtime", script, *arguments]
        options = {"cwd": script.parent, "capture_output": True, "text": True, "timeout": 240, **options}
        return subprocess.run(command, check=False, **options)

    return call


def test_the_version_is_that_of_what_is_installed_which_names_the_script_and_the_address():
    distribution = importlib.metadata.distribution("tensorflow-ipu")
    assert ipu.__version__ == distribution.version
    values = [entry.value for entry in distribution.entry_points if entry.name == "tensorflow-ipu"]
    assert values == ["tensorflow_ipu.__main__:main"]
    urls = distribution.metadata.get_all("Project-URL") or []
    assert "Homepage, https://github.com/tensorflow-ipu/tensorflow-ipu" in urls


@pytest.mark.parametrize(
    ("arguments", "status", "output"),
    [
        (["--version"], 0, f"tensorflow-ipu {importlib.metadata.version('tensorflow-ipu')}\n"),
        (["list", "ipu.loops"], 0, "ipu.loops.repeat "),
        (["check", str(ROOT / "tests" / "compat" / "scripts")], 1, "exists only in Keras 2:\n"),
        (["info", "--report"], 0, f"<details><summary>tensorflow_ipu {importlib.metadata.version('tensorflow-ipu')}"),
        (
            ["pipeline", "--stages", "2", "--micro-batches", "3"],
            2,
            "tensorflow-ipu pipeline: the number of micro-batches",
        ),
    ],
)
def test_the_console_script_runs_commands_without_tensorflow(console, arguments, status, output):
    done = console(*arguments)
    assert done.returncode == status
    assert output in (done.stderr if status == 2 else done.stdout)
    assert not re.search(r"\| +(tensorflow|keras|tf_keras|matplotlib)$", done.stderr, re.MULTILINE)


def test_shells_complete_commands_options_and_scripts(console, tmp_path):
    pytest.importorskip("argcomplete")
    (tmp_path / "train.py").touch()
    completions = tmp_path / "completions"

    def completed(line):
        request = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
        done = console(env={**os.environ, **request, "_ARGCOMPLETE_STDOUT_FILENAME": completions})
        assert not re.search(r"\| +tensorflow$", done.stderr, re.MULTILINE)
        return completions.read_text().split()

    assert completed("tensorflow-ipu pre") == ["precision"]
    assert completed(f"tensorflow-ipu {tmp_path}/t") == [f"{tmp_path}/train.py"]
    assert completed("tensorflow-ipu pipeline --sch") == ["--schedule"]


def test_who_reads_a_part_of_the_output_sees_no_error(tmp_path):
    command = [sys.executable, "-m", "tensorflow_ipu", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=240) == 128 + 13


def test_every_command_has_help_with_its_statuses_and_the_page_has_all_options(execute):
    page = (ROOT / "docs" / "command_line.md").read_text()
    parser = whole_parser()
    commands = next(action.choices for action in parser._actions if action.choices and "run" in action.choices)
    assert isinstance(commands, dict)
    assert list(commands) == list(COMMANDS)
    for name, command_parser in commands.items():
        assert f"## {name}" in page.lower().replace("`", "")
        options = {
            option for action in command_parser._actions for option in action.option_strings if option.startswith("--")
        }
        assert not [option for option in options if f"`{option}" not in page and f" {option}" not in page], name
        status, out, _ = execute(name, "--help")
        assert status == 0
        assert "status: " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reprot", "a.json"], "`reprot` does not exist; name a Python file. Did you mean the command `report`?"),
        (["--chekc", "x.py"], "--chekc. Did you mean the command `check`?"),
        (["check", "."], "there is no Python file in `.`"),
        (["check", "trace.json"], "`trace.json` is a trace; open it at https://ui.perfetto.dev"),
        (["report.json"], "is a report of a program; `python -m tensorflow_ipu report report.json` shows it"),
        (["precision", "report.json"], "`report.json` is a report of a program; `python -m tensorflow_ipu report"),
        (["-m", "no.such"], "there is no module `no`"),
        (["-m"], "name the module to run, after `-m`"),
    ],
)
def test_what_was_meant_is_said(execute, tmp_path, arguments, message):
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (tmp_path / "report.json").write_text('{"schema": 2, "operations": []}')
    status, out, err = execute(*arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_check_tells_programs_what_it_found_and_names_what_cannot_be_read(execute, tmp_path):
    (tmp_path / "old.py").write_text("from tensorflow.python.ipu import utils\nutils.create_ipu_config()\n")
    (tmp_path / "older.py").write_text("print 'Python 2'\n")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")  # Reading it would block.
    status, out, _ = execute("check", ".", "--json")
    findings = json.loads(out)
    assert status == 1
    assert [(place["path"], place["line"]) for place in findings["unreadable"]] == [("older.py", 1)]
    assert [(place["path"], place["line"]) for place in findings["missing"]] == [("old.py", 2)]
    assert "it became `IPUConfig`" in findings["missing"][0]["message"]
    assert execute("check", "older.py")[1].startswith("cannot be read as Python:\n  older.py:1: ")


def test_functions_that_set_options_lead_to_attributes_that_exist():
    for option in _names.OLD_OPTIONS.values():
        value = IPUConfig()
        for name in filter(None, option.split(".")):
            value = getattr(value, name)


def test_json_has_the_figures_of_the_text(execute):
    status, out, _ = execute("list", "ipu.loops", "--json")
    assert status == 0
    assert json.loads(out)[0] == {"name": "ipu.loops.repeat", "state": "works", "words": "tensorflow_ipu.loops.repeat"}
    assert execute("list", "no such name")[0] == 1
    arguments = ("pipeline", "--stages", "2", "--micro-batches", "4", "--activation-bytes", "4MiB", "--json")
    plan = json.loads(execute(*arguments)[1])
    assert plan["time"] == 15.5
    assert [ipu["stash_bytes"] for ipu in plan["ipus"]] == [12 << 20, 4 << 20]
    compared = json.loads(execute(*arguments, "--compare")[1])
    assert compared["candidates"][0]["time"] <= plan["time"]
    assert compared["reason"]


def test_modules_and_code_run_as_under_python(execute, monkeypatch, tmp_path):
    package = tmp_path / "package_of_cli_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "other.py").write_text("from tensorflow.python.ipu import loops\nname = loops.repeat\n")
    code = "import sys\nprint(sys.argv, __name__, __package__, __spec__ and __spec__.name)\n"
    (package / "train.py").write_text(f"from .other import name\n{code}")
    monkeypatch.syspath_prepend(str(tmp_path))
    status, out, err = execute("run-script", "-m", f"{package.name}.train", "--force")
    module = f"{package.name}.train"
    assert (status, err) == (0, "")
    assert out == f"{[str(package / 'train.py'), '--force']} __main__ {package.name} {module}\n"
    assert execute("run", "python3", "-c", code, "-m")[1] == "['-c', '-m'] __main__ None None\n"
    status, _, err = execute("-c", "from tensorflow.python.ipu import lops")
    assert status == 2
    assert "<string>:1: " in err
    assert "did you mean `loops`?" in err


LINE = "--vipu-partition=p --numa-aware yes -vv --num-replicas 4 --num-instances 2 --mpi-global-args --tag-output"


def test_lines_of_poprun_are_taken_as_they_stand(monkeypatch, execute, tmp_path):
    started = []
    monkeypatch.setattr(run, "execute", lambda line, output: started.append((line, output._shown_worker)) or 0)
    (tmp_path / "train.py").touch()
    more = ("--mpi-local-args", " -x A=5 -x PATH --mca q w", "--executable-cache-path", "kept", "--offline-mode")
    status, _, err = execute("run", *LINE.split(), *more, "python3", "-u", "train.py", "--numa-aware")
    assert status == 0
    [(line, only)] = started
    command = [sys.executable, "-u", "-m", "tensorflow_ipu", "run-script", "train.py", "--numa-aware"]
    assert line[-5 - len(command) :] == ["--mca", "q", "w", "-n", "2", *command]
    assert {"TENSORFLOW_IPU_REPLICAS=2", "A=5", f"PATH={os.environ['PATH']}"} <= {*line}
    assert line[line.index("--bind-to") + 1] == "numa"
    [flags] = [word for word in line if word.startswith("TF_POPLAR_FLAGS=")]
    assert flags.endswith(f"--executable_cache_path={tmp_path}/kept")
    assert only is None
    first, second = err.splitlines()
    assert first == "python -m tensorflow_ipu run: ignored options: `--vipu-partition`, `--offline-mode`"
    assert second == shlex.join(line)
    assert execute("run", "-n", 2, "--only-output-from-instance", 1, "-m", "json.tool")[::2] == (0, "")
    assert (started[1][0][-2:], started[1][1]) == (["-m", "json.tool"], 1)
    _, out, _ = execute("run", "--host", "a[0-2,04]", "--dry-run", "train.py")
    assert " --host a0:1,a1:1,a2:1,a04:1 " in out


def test_replicas_of_a_line_of_poprun_are_those_of_popdist(tmp_path):
    code = "import popdist as p; print(p.getInstanceIndex(), p.getNumTotalReplicas(), p.getNumLocalReplicas())"
    arguments = [
        "run",
        "--num-instances",
        "2",
        "--num-replicas",
        "4",
        "--only-output-from-instance",
        "1",
        "python",
        "-c",
    ]
    command = [sys.executable, "-m", "tensorflow_ipu", *arguments, code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "[1] 1 4 2\n"


def test_info_says_which_variables_act_and_its_report_hides_what_they_may_hold(execute, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "one.ipu_executable").write_text("12345")
    (tmp_path / "kept" / "thesis").write_text("somebody else's")
    cluster = {"cluster": {"worker": ["secret:1", "secret:2"]}, "task": {"type": "worker", "index": 1}}
    for name, value in {
        "TF_POPLAR_FLAGS": f"--executable_cache_path={tmp_path}/kept --other",
        "TENSORFLOW_IPU_CUONT": "secret",
        "TENSORFLOW_IPU_TIMEOUT": "soon",
        "IPUOF_VIPU_API_HOST": "secret",
        "TF_CONFIG": json.dumps(cluster),
        "MY_TOKEN": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    sections = json.loads(execute("info", "--json")[1])
    effects = {name: variable["effect"] for name, variable in sections["environment"].items()}
    assert effects["TF_POPLAR_FLAGS"] == "used; ignored: `--other`"
    assert effects["TENSORFLOW_IPU_CUONT"] == "nothing reads it; did you mean `TENSORFLOW_IPU_COUNT`?"
    assert effects["TENSORFLOW_IPU_TIMEOUT"].startswith("wrong: `TENSORFLOW_IPU_TIMEOUT=soon` is no number of seconds")
    assert effects["TF_CONFIG"] == "this process is `worker` 1 of a cluster of 2 of `worker`"
    assert sections["executable cache"] == {"folder": f"{tmp_path}/kept", "files": 1, "size_bytes": 5}
    assert sections["versions"]["tensorflow_ipu"] == ipu.__version__
    assert sections["library"]["state"] == "as it was built"
    assert "MY_TOKEN" not in effects
    status, out, _ = execute("info", "--report")
    assert status == 0
    assert "secret" not in out
    assert str(tmp_path) not in out
    assert "folder: ~/kept" in out
    assert "IPUOF_VIPU_API_HOST=(set): nothing reads it" in out


def test_every_variable_of_the_package_is_one_of_which_info_says_what_it_does():
    package = Path(ipu.__file__).parent
    read = {
        name for file in package.rglob("*.py") for name in re.findall(r'"(TENSORFLOW_IPU_[A-Z_]+)"', file.read_text())
    }
    assert read <= set(info.ACTING), "add the new variable to `ACTING` in `cli/info.py`"


def test_options_of_python_itself_are_kept_apart():
    program = programs.program_of(["/usr/bin/python3.8", "-u", "-W", "error", "-m", "a.b", "-c"])
    assert (program.interpreter, program.words) == (("-u", "-W", "error"), ["-m", "a.b", "-c"])
    for arguments in (["python"], ["python", "-W"]):  # Options of Python without a program.
        with pytest.raises(ValueError, match="name the script to run"):
            programs.program_of(arguments)
