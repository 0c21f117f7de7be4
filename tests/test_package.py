"""What is installed: every file of the package, whatever the file system and the kind of installation."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from setuptools.config.pyprojecttoml import apply_configuration
from setuptools.dist import Distribution

from fl_lightning.words import how_to_install

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / "tools" / "release.py"))
PACKAGE = ROOT / "fl_lightning"


@pytest.fixture
def distribution(monkeypatch: pytest.MonkeyPatch) -> Distribution:
    monkeypatch.chdir(ROOT)
    return apply_configuration(Distribution({"script_name": "setup.py"}), "pyproject.toml")


def test_the_wheel_has_every_file_of_the_package(distribution: Distribution, tmp_path: Path) -> None:
    command = distribution.get_command_obj("build_py")
    command.build_lib = str(tmp_path)
    command.ensure_finalized()
    in_wheel = {Path(path).relative_to(tmp_path) for path in command.get_outputs(include_bytecode=False)}
    in_package = {path.relative_to(ROOT) for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert in_wheel == in_package
    for shipped in ("datamodules/digits.npz", "recipes/cifar_radfed.py", "recipes/tables/dmoz_small.yaml", "py.typed"):
        assert Path("fl_lightning", shipped) in in_wheel


def test_folders_of_the_package_are_where_python_looks_for_them(distribution: Distribution) -> None:
    # an editable installation is then a path, which type checkers and editors can follow
    assert distribution.package_dir == {"": "."}
    # links are missing from an archive of the repository, and from a clone where git makes none
    assert not [path for path in PACKAGE.rglob("*") if path.is_symlink()]


def test_every_recipe_is_started_from_the_folder_of_recipes() -> None:
    started = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "recipes").glob("*.py")}
    assert started.keys() == {path.name for path in (PACKAGE / "recipes").glob("*.py")}
    other = [name for name, text in started.items() if f'"fl_lightning.recipes.{name.removesuffix(".py")}"' not in text]
    assert other == []


def read_toml() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_command_that_an_error_names_installs_what_an_extra_has() -> None:
    extras = read_toml()["project"]["optional-dependencies"]
    for extra, page in (("slurm", "machines"), ("ray", "machines"), ("flower", "real-clients")):
        [needed] = extras[extra]
        assert how_to_install(extra) == f'pip install "{needed}"'
        assert how_to_install(extra) in (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert RELEASE["differences"](citation, read_toml()["project"]) == []
    [wrong] = RELEASE["differences"]({**citation, "version": "0.0.9"}, read_toml()["project"])
    assert wrong == "`version` of CITATION.cff is '0.0.9', and that of pyproject.toml '0.1.0'."


def test_links_of_the_readme_are_addresses_in_a_release() -> None:
    text = "See [a](docs/a.md#b), [c](https://c.org), [d](#d), ![e](docs/e.png) and `x[0](y)`."
    home = "https://example.org/fl"
    page = f"{home}/blob/v1/docs/a.md#b"
    picture = f"{home}/raw/v1/docs/e.png"
    expected = f"See [a]({page}), [c](https://c.org), [d](#d), ![e]({picture}) and `x[0](y)`."
    assert RELEASE["with_addresses"](text, home, "v1") == expected
    readme = RELEASE["with_addresses"]((ROOT / "README.md").read_text(encoding="utf-8"), home, "v1")
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(links) > 40
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_list_for_assistants_names_pages_that_exist() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).is_file()] == []
