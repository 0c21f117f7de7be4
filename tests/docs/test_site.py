"""The site has every page and every public name, and is built without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = (
    "fl_lightning",
    *(f"fl_lightning.{room}" for room in ("callbacks", "data", "diagnostics", "executors", "experiment", "models")),
    *(f"fl_lightning.{room}" for room in ("partitioners", "parts", "report")),
    "fl_lightning.datamodules",
)


def entries(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    for entry in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from entries(entry)


def settings() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return read


def test_every_page_is_in_the_navigation() -> None:
    pages = {path.relative_to(DOCS).as_posix() for kind in ("*.md", "*.ipynb") for path in DOCS.rglob(kind)}
    assert sorted(entries(settings()["nav"])) == sorted(pages)


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    shown = {
        name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
    }
    things = {id(getattr(import_module(module), name)) for module, _, name in (each.rpartition(".") for each in shown)}
    for package in PACKAGES:
        for name in import_module(package).__all__:
            thing = getattr(import_module(package), name)
            assert f"{package}.{name}" in shown or id(thing) in things, f"{package}.{name}"


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "how-to" / "resume" / "index.html").is_file()
    for notebook in (DOCS / "notebooks").glob("*.ipynb"):
        assert "data:image/png" in (tmp_path / "site" / "notebooks" / notebook.stem / "index.html").read_text()
    # references of docstrings are shown as code, not as Sphinx's roles
    assert ":class:`" not in (tmp_path / "site" / "api" / "algorithms" / "index.html").read_text()
