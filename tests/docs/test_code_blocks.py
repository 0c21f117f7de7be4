"""Every block of Python in README and docs runs, page by page, from its first line to its last.

A page's blocks share their names, and nothing else is there: what a reader types runs. ``<!-- run last -->`` before a
block puts it behind the others, and ``<!-- not run: REASON -->`` leaves it out; it must still be Python. A line
``--8<-- "FILE"`` stands for that file.
"""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import yaml
from matplotlib import pyplot

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<word>not run: [^\n]+|run last) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


@dataclass
class Block:
    """A block of code, and how it is run: ``"run"``, ``"run last"`` or ``"not run: ..."``."""

    code: str
    line: int
    word: str


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in the order in which they run."""
    text = page.read_text(encoding="utf-8")
    found = []

    def included(line: re.Match[str]) -> str:
        return (ROOT / line[1]).read_text(encoding="utf-8")

    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        code = re.sub(r'^--8<-- "(.+)"$', included, match["code"], flags=re.MULTILINE)
        found.append(Block(code, line, match["word"] or "run"))
    return sorted(found, key=lambda block: block.word == "run last")


def fences(page: Path) -> Iterator[str]:
    yield from re.findall(r"^```(\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)


WITH_CODE = [page for page in PAGES if "python" in fences(page)]


@pytest.fixture
def calm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder and without windows; afterwards loggers are as before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "agg")
    pyplot.switch_backend("agg")
    level, handlers = logging.getLogger("fl_lightning").level, logging.getLogger().handlers[:]
    yield
    logging.getLogger("fl_lightning").setLevel(level)
    logging.getLogger().handlers[:] = handlers


def case_of(page: Path) -> Any:
    """Return a page as a case; only the pages that all read first are run by default."""
    is_first = page.name == "README.md" or page.parent.name == "get-started"
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=() if is_first else pytest.mark.long)


@pytest.mark.parametrize("page", map(case_of, WITH_CODE))
def test_the_blocks_of_a_page_run(page: Path, calm: None, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks_of(page):
        # a traceback names the page, and the line in it
        code = "\n" * block.line + block.code
        if block.word.startswith("not run"):
            ast.parse(code)
        else:
            exec(compile(code, str(page), "exec", dont_inherit=True), names)
    pyplot.close("all")
    if page.name == "README.md":
        assert "12 clients trained.\nAccuracy on the data of other clients: " in capsys.readouterr().out
        assert Path("first_run.png").is_file()


def test_blocks_of_yaml_are_yaml() -> None:
    for page in PAGES:
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            assert isinstance(yaml.safe_load(block), dict), page


def test_the_table_of_get_started_has_no_mistake(tmp_path: Path) -> None:
    from fl_lightning.experiment.check import refuse_mistakes
    from fl_lightning.experiment.table_file import read_table

    page = (ROOT / "docs" / "get-started" / "experiment.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "digits.yaml").write_text(block)
    refuse_mistakes(read_table(tmp_path / "digits.yaml"))


@pytest.mark.long
def test_lightning_cli_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "config-file.md").read_text(encoding="utf-8")
    [settings] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    [program] = [block.code for block in blocks_of(page=ROOT / "docs" / "how-to" / "config-file.md")]
    (tmp_path / "run.yaml").write_text(settings)
    (tmp_path / "main.py").write_text(program)
    command = [sys.executable, "main.py", "fit", "--config", "run.yaml", "--trainer.max_epochs", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [written] = tmp_path.glob("lightning_logs/version_0/config.yaml")
    chosen = yaml.safe_load(written.read_text())
    first, second = chosen["trainer"]["callbacks"]
    assert first["class_path"] == "fl_lightning.FedProx"
    assert (first["init_args"]["clients_per_round"], first["init_args"]["local_epochs"]) == (5, 2)
    assert second["class_path"] == "fl_lightning.FederatedCheckpoint"
    assert chosen["data"]["partitioner"]["class_path"] == "fl_lightning.partitioners.DirichletPartitioner"


@pytest.mark.long
def test_hydra_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    page = ROOT / "docs" / "how-to" / "hydra.md"
    [settings] = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "run.yaml").write_text(settings)
    (tmp_path / "main.py").write_text(blocks_of(page)[0].code)
    command = [sys.executable, "main.py", "trainer.max_epochs=2", "algorithm.mu=0.1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [logged] = tmp_path.glob("**/hparams.yaml")
    assert "mu: 0.1" in logged.read_text()
