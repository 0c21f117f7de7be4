"""What is installed: every file of the package, whatever the file system and the kind of installation."""

from __future__ import annotations

from pathlib import Path

import pytest
from setuptools.config.pyprojecttoml import apply_configuration
from setuptools.dist import Distribution

ROOT = Path(__file__).parents[1]
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


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda path: path.stem)
def test_a_recipe_is_started_from_the_folder_of_recipes(path: Path) -> None:
    assert f'"fl_lightning.recipes.{path.stem}"' in path.read_text(encoding="utf-8")
    assert (PACKAGE / "recipes" / path.name).is_file()


def test_every_recipe_can_be_started_from_the_folder_of_recipes() -> None:
    started = {path.name for path in (ROOT / "recipes").glob("*.py")}
    assert started == {path.name for path in (PACKAGE / "recipes").glob("*.py")}
