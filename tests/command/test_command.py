"""The command ``fl-lightning``, its help, its suggestions, and what it finds."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

# submitit configures logging when it is first imported, and so closes all handlers that tests have made by then
import submitit  # noqa: F401
import yaml
from helpers.small_table import small, with_data
from helpers.values import assert_values

from fl_lightning import FedProx
from fl_lightning.command import main
from fl_lightning.command.commands import _COMMANDS, _engine_options, make_parser
from fl_lightning.command.parser import ends_by_error, ends_by_interrupt
from fl_lightning.report import experiment_report
from fl_lightning.shipped import shipped

ROOT = Path(__file__).parents[2]


def test_classes_of_the_present_folder_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["elsewhere", *sys.path])
    monkeypatch.setattr(sys, "argv", ["fl-lightning", "--help"])
    for _ in range(2):
        with pytest.raises(SystemExit):
            main()
        assert sys.path[:2] == [str(tmp_path), "elsewhere"]


@pytest.mark.long
def test_help_is_shown_without_the_library() -> None:
    program = (
        "import sys\n"
        "from fl_lightning.command import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        "    print(sorted({'torch', 'lightning'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for command in ("run", "sweep", "report", "describe", "recipe"):
        assert f"\n    {command} " in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.long
def test_a_table_finds_classes_in_the_folder_of_the_command(tmp_path: Path) -> None:
    # as pip installs the command: a script in a folder of its own, which is then first among Python's folders
    script = tmp_path / "bin" / "fl-lightning"
    script.parent.mkdir()
    script.write_text("import sys\nfrom fl_lightning.command import main\nsys.exit(main())\n")
    work = tmp_path / "work"
    work.mkdir()
    (work / "my_models.py").write_text(
        "from fl_lightning.models import LogisticRegressionClassifier\n\n\n"
        "class MyModel(LogisticRegressionClassifier):\n    pass\n"
    )
    table = small()
    table["data"]["digits"]["model"]["class_path"] = "my_models.MyModel"
    (work / "mine.yaml").write_text(yaml.safe_dump(table))
    command = [sys.executable, str(script), "run", "mine.yaml", "--dry-run"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("small: ")


def test_recipes_are_listed_and_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["recipe"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {path.stem} " in listed for path in (ROOT / "recipes").glob("*.py"))
    assert listed.startswith("usage: fl-lightning recipe NAME [options]\n\nrecipes:\n  ")
    first = shipped("recipe")["cifar_radfed"].read_text().partition("\n")[0].strip('"# ')
    assert f"\n  cifar_radfed          {first}\n" in listed
    monkeypatch.setattr(sys, "argv", ["fl-lightning"])
    with pytest.raises(SystemExit) as ended:
        main(["recipe", "cifar_radfed", "--help"])
    assert ended.value.code == 0
    # examples stay lines, and defaults are shown
    text = capsys.readouterr().out
    assert "\n    python recipes/cifar_radfed.py --preset paper" in text
    assert "folder with one folder for each run (type:" in " ".join(text.split())
    for option in ("--preset", "--method", "--partitioner", "--data.batch_size", "--model.lr", "--trainer.max_epochs"):
        assert option in text


def test_the_help_of_a_command_says_what_its_options_take(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    taken = dict(re.findall(r"--([\w-]+) ([A-Z=]+)\b", text))
    one = {"output": "OUTPUT", "workers": "N", "retries": "N", "memory-limit": "GB", "engine-options": "NAME=VALUE"}
    several = {"methods": "NAME", "data": "NAME", "folds": "N", "seeds": "N", "devices": "N"}
    assert taken == one | several | {"checkpoint-seconds": "SECONDS", "cell-timeout": "SECONDS"}
    assert "default: runs/<name of the table> (type: folder, default: null)" in text


def test_each_option_has_its_help_and_what_is_not_given(capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        **{"run": {"estimate", "dry-run", "help"}, "sweep": {"count", "seed", "output", "help"}},
        **{"report": {"output", "help"}, "describe": {"partitioner", "split", "output", "max-clients", "overwrite"}},
    }
    for command, names in options.items():
        parser = make_parser([command])
        assert parser.usage == "fl-lightning COMMAND [options]"
        [subparsers] = [action for action in parser._actions if hasattr(action, "_name_parser_map")]
        own = subparsers._name_parser_map[command]
        assert (own.prog, own.usage) == (f"fl-lightning {command}", f"fl-lightning {command} [options]")
        shown = {string.removeprefix("--"): action for string, action in own._option_string_actions.items()}
        assert names <= set(shown)
        assert [action.dest for action in own._actions if not action.help] == []
        title = _COMMANDS[command].help
        assert own.description == f"{title[0].upper()}{title[1:]}."
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert told.startswith("usage: fl-lightning COMMAND [options]\n") and "eval " in told
    for name, command in _COMMANDS.items():
        assert f" {name} {command.help} " in f"{' '.join(told.split())} "
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.split()[-1] == version("fl-lightning")
    assert main([]) == 0
    assert capsys.readouterr().out == told


#: Words of a command, and the options that it gets.
GIVEN: dict[str, dict[str, Any]] = {
    "run t.yaml": {"workers": 1, "engine": "local", "retries": 0, "checkpoint_seconds": 60.0, "output": None},
    "run t.yaml --devices 0 1 --cell-timeout 9": {"devices": [0, 1], "cell_timeout": 9.0, "folds": None},
    "run t.yaml --memory-limit 4.5 --folds 1 2": {"memory_limit": 4.5, "folds": [1, 2], "devices": None},
    "run t.yaml --seeds 3 --estimate": {"seeds": [3], "estimate": True, "dry_run": False, "methods": None},
    "run t.yaml --engine-options a=[1] b=x": {"engine_options": ["a=[1]", "b=x"]},
    "sweep s.yaml --count 3 --output out -- --a": {"file": "s.yaml", "count": 3, "seed": 0, "output": Path("out")},
    "report runs --output out": {"results": Path("runs"), "output": Path("out")},
}


def test_options_reach_the_commands_in_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, given in GIVEN.items():
        name, *rest = words.split()
        seen: list[Any] = []
        command = replace(_COMMANDS[name], run=lambda *arguments, seen=seen: seen.extend(arguments) or 7)
        monkeypatch.setitem(_COMMANDS, name, command)
        assert main([name, *rest]) == 7
        options, further = seen
        assert {key: options[key] for key in given} == given
        assert further == (["--a"] if name == "sweep" else [])
    assert _engine_options(["a=[1]", "b=x", "c="]) == {"a": [1], "b": "x", "c": None}


def test_run_hands_on_its_options_and_its_status_tells_of_unfinished_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    content = with_data(stand_in="A & B.")
    content["data"] |= {"own": small()["data"]["digits"], "more": content["data"]["digits"]}
    Path("t.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    rows: list[dict[str, Any]] = [{"score": None}, {"score": 0.5}]
    given = []

    def run(table: Any, output: Path, **options: Any) -> list[dict[str, Any]]:
        given.append((table.seeds, output, options))
        if not rows:
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)  # type: ignore[operator, misc]
        return rows

    monkeypatch.setattr("fl_lightning.experiment.run_table", run)
    monkeypatch.setitem(experiment_report.__globals__, "scores_as_text", lambda output: f"of {output}")
    before = signal.getsignal(signal.SIGTERM)
    assert (
        main(["run", "t.yaml", "--seeds", "3", "--retries", "2", "--engine", "ray", "--engine-options", "num_gpus=0.5"])
        == 1
    )
    options = {"workers": 1, "devices": None, "checkpoint_seconds": 60.0, "cell_timeout": None, "memory_limit": None}
    options |= {"retries": 2, "engine": "ray", "engine_options": {"num_gpus": 0.5}}
    assert given == [([3], Path("runs/small"), options)]
    lines = ["STAND-IN digits: A & B.", "STAND-IN more: A & B.", "", "of runs/small", ""]
    assert capsys.readouterr().out.splitlines() == [*lines, "The whole report: fl-lightning report runs/small"]
    # A signal ends the run with its own status, and is afterwards answered as before.
    rows.clear()
    assert main(["run", "t.yaml"]) == 143
    assert capsys.readouterr().err == "Ended by SIGTERM. Run the same command again to continue.\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_completion_knows_commands_options_and_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--print_completion", "shtab-bash"])
    script = capsys.readouterr().out
    for word in ("describe", "--checkpoint-seconds", "--dry-run", "fashion-mnist", "cifar_radfed"):
        assert word in script


CONFIG = """
model: {class_path: MLPClassifier, init_args: {hidden: [4], in_features: 3072}}
data:
  class_path: fl_lightning.datamodules.DigitsDataModule
  init_args: {partitioner: {class_path: IIDPartitioner, init_args: {num_clients: 10}}}
trainer:
  max_epochs: 1
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  callbacks: [{class_path: FedAvg, init_args: {clients_per_round: 2}}]
"""


def test_fit_is_that_of_lightning_with_the_classes_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    assert main(["fit", "--config", "mine.yaml"]) == 0
    assert "FedAvg" in (tmp_path / "config.yaml").read_text()


def test_an_error_of_the_package_ends_fit_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(CONFIG.replace("num_clients: 10", "num_clients: 5000"))
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", "mine.yaml"])
    assert ended.value.code == 2
    assert "num_clients" in capsys.readouterr().err


# ---- what programs share ----


def test_an_interrupt_ends_a_program_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, ends_by_interrupt(lambda: "Interrupted in round 3."):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    with pytest.raises(SystemExit) as ended, ends_by_interrupt(lambda: "Interrupted in round 4."):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)  # as the Trainer does
    assert ended.value.code == 130
    assert capsys.readouterr().err.split("\n") == ["", "Interrupted in round 3.", "", "Interrupted in round 4.", ""]
    with pytest.raises(SystemExit) as ended, ends_by_interrupt(lambda: "no"):
        sys.exit(2)
    assert ended.value.code == 2
    with pytest.raises(SystemExit), ends_by_interrupt(lambda: "outer"), ends_by_interrupt(lambda: "inner"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "\ninner\n"


def test_what_the_package_refuses_ends_a_program_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, ends_by_error():
        FedProx(mu=-1.0)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: `mu` ")
    # errors of other code, called by the package or not, are mistakes that need their traceback
    with pytest.raises(ValueError, match="no number"), ends_by_error():
        raise ValueError("no number")
    with pytest.raises(ValueError, match="invalid literal"), ends_by_error():
        int("x")


# ---- a terminal ----


TYPOS = {
    "run --ouput": ["--output"],
    "reprot": ["report"],
    "describe cifra10": ["cifar10"],
    "recipe cifar_radfd": ["cifar_radfed"],
    "recipe xyz": ["no recipe xyz.", "dmoz_distributions"],
    "run mnist_metods": ["mnist_methods"],
    "run mine": ["no table mine.", "Did you mean mine.yaml?"],
    "sweep xyz.yaml": ["no sweep xyz.yaml.", "cifar_fedadam"],
    "describe digits --partitioner iid --num-cliens 9": ["--num-clients"],
    "run mnist_methods --workers -1": ["workers"],
    "run small.yaml --workers -2": ["workers", "-2"],
    "run small.yaml --output=": ["--output"],
    "run small.yaml --wokers 2 --sedes 3": ["Did you mean --workers and --seeds?"],
    "run small.yaml -- --dry-run": ["after -- are for `sweep` alone, got -- --dry-run"],
    "run small.yaml --engine slurm --engine-options a={": ["`--engine-options` 'a={': while"],
    "run small.yaml --engine slurm --engine-options a": ["must be NAME=VALUE, got 'a'"],
    "run small.yaml --engine slurm --engine-options =a": ["must be NAME=VALUE, got '=a'"],
    "run small.yaml --engine slurm --engine-options cluster=local slurm_partitoin=x": ["partitoin"],
    "run mnist_methods --checkpoint-seconds nan": ["checkpoint_seconds"],
    "run mnist_methods --dry-run --methods X": ["methods"],
    "run radfed_smal": ["radfed_small"],
    "recipe cifar_radfed --otput x": ["Did you mean --output?"],
    "recipe cifar_radfed --resume nowhere": ["--resume nowhere: there is no run in that folder"],
    "sweep cifar_fedadam": ["count", "got None"],
}


def test_mistakes_are_answered_with_what_was_meant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("")
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small()))
    for command, names in TYPOS.items():
        monkeypatch.setattr(sys, "argv", ["fl-lightning"])
        try:
            status = main(command.split())
        except SystemExit as end:
            status = int(end.code or 0)
        told = capsys.readouterr().err
        assert status in (1, 2), command
        assert [line[:7] for line in told.splitlines()].count("error: ") <= 1, command
        assert [name for name in names if name not in told] == [], (command, told)
        assert_values(told, names)
