"""The examples in the docstrings of public classes run and print what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
import sys
from pathlib import Path

import pytest
import torch

#: Packages that export classes; each of the first four's classes has an example.
ROOMS = ("data", "datamodules", "models", "partitioners")
EXPORTING = (*ROOMS, "diagnostics", "experiment", "parts", "report")
PACKAGES = ("fl_lightning", *(f"fl_lightning.{room}" for room in EXPORTING))


def classes_of(package: str) -> dict[str, type]:
    module = importlib.import_module(package)
    exported = {name: getattr(module, name) for name in module.__all__}
    return {f"{package}.{name}": each for name, each in exported.items() if inspect.isclass(each)}


CLASSES = {name: each for package in PACKAGES for name, each in classes_of(package).items()}
WITH_EXAMPLE = [name for name, each in CLASSES.items() if ">>>" in (each.__doc__ or "")]


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_an_example_prints_what_it_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    documented = CLASSES[name]
    # what is exported beside the class, and what its file knows
    package = importlib.import_module(name.rpartition(".")[0])
    names = {**vars(sys.modules[documented.__module__]), **{each: getattr(package, each) for each in package.__all__}}
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(documented) or "", names, name, None, None)
    printed: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=printed.append)
    assert not printed, "".join(printed)


@pytest.mark.parametrize("room", ROOMS)
def test_every_class_of_a_room_has_an_example(room: str) -> None:
    package = f"fl_lightning.{room}"
    assert [name for name in classes_of(package) if name not in WITH_EXAMPLE] == []
