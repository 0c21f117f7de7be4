"""The lists of README and pages have every public name of their kind, and no name that does not exist."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback

import fl_lightning
from fl_lightning import AggregationCallback, FederatedDataModule, parts
from fl_lightning.data import Poison, Split
from fl_lightning.executors import Executor
from fl_lightning.partitioners import Partitioner
from fl_lightning.parts.part import Part

ROOT = Path(__file__).parents[2]
#: The package and its public rooms.
ROOMS = ("fl_lightning", *(f"fl_lightning.{room.name}" for room in iter_modules(fl_lightning.__path__) if room.ispkg))
#: Where pages may take other names of classes from.
LIGHTNING = "builtins lightning.pytorch lightning.pytorch.callbacks lightning.pytorch.loggers"
TORCH = "torch torch.nn torch.optim torch.optim.lr_scheduler torch.optim.swa_utils torch.utils.data"
OTHERS = [*LIGHTNING.split(), *TORCH.split()]
#: A page, a room, and the kind of which the page lists the room's classes.
LISTS: list[tuple[str, str, type]] = [
    ("README.md", "fl_lightning", AggregationCallback),
    ("docs/algorithms.md", "fl_lightning", AggregationCallback),
    ("CHANGELOG.md", "fl_lightning", AggregationCallback),
    ("docs/how-it-works.md", "fl_lightning.parts", parts.ClientSampler),
    ("docs/how-it-works.md", "fl_lightning.parts", parts.Schedule),
    ("docs/how-it-works.md", "fl_lightning.parts", parts.LocalObjective),
    ("docs/how-it-works.md", "fl_lightning.parts", parts.Aggregation),
    ("docs/how-it-works.md", "fl_lightning.parts", parts.ServerOptimizer),
    ("README.md", "fl_lightning.parts", parts.ClientSampler),
    ("README.md", "fl_lightning.parts", parts.Compressor),
    ("README.md", "fl_lightning.parts", parts.RobustAggregation),
    ("README.md", "fl_lightning.parts", parts.Attack),
    ("README.md", "fl_lightning.data", Poison),
    ("docs/robustness.md", "fl_lightning.parts", parts.RobustAggregation),
    ("docs/robustness.md", "fl_lightning.parts", parts.PreAggregation),
    ("docs/robustness.md", "fl_lightning.parts", parts.Attack),
    ("docs/robustness.md", "fl_lightning.data", Poison),
    ("docs/compression.md", "fl_lightning.parts", parts.Compressor),
    ("docs/how-to/choose-clients.md", "fl_lightning.parts", parts.ClientSampler),
    ("docs/partitioning.md", "fl_lightning.partitioners", Partitioner),
    ("docs/partitioning.md", "fl_lightning.data", Split),
    ("datamodules/README.md", "fl_lightning.datamodules", FederatedDataModule),
    ("README.md", "fl_lightning.models", LightningModule),
    ("README.md", "fl_lightning.diagnostics", Callback),
    ("README.md", "fl_lightning.callbacks", Callback),
    ("docs/algorithms.md", "fl_lightning.diagnostics", Callback),
    ("docs/scaling.md", "fl_lightning.executors", Executor),
]
#: Kinds that a page leaves to another one, to which it links.
ELSEWHERE = {"docs/how-it-works.md": (parts.RobustAggregation,)}
#: The bases whose attributes and properties are questions to a part.
NAMES = "ClientSampler Schedule LocalObjective Exchange Aggregation MeanAggregation ServerOptimizer"
QUESTIONS: list[type] = [Part, *(getattr(parts, name) for name in NAMES.split())]
#: Pages whose tables have names of the package's classes.
PAGES = ("algorithms", "personalisation", "robustness", "partitioning", "how-it-works")
TABLES = ("README.md", *(f"docs/{page}.md" for page in PAGES))


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def bases() -> set[str]:
    """Return the names that the reference lists for users who write their own classes."""
    found: set[str] = set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for section in re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.M):
            if section.startswith("For your own") or page.name == "part-bases.md":
                found.update(re.findall(r"^::: \S+\.(\w+)$", section, re.M))
    return found


BASES = bases()


def names_of(room: str, kind: type) -> list[str]:
    """Return the classes of a kind that a room offers for use."""
    things = {name: getattr(import_module(room), name) for name in import_module(room).__all__}
    classes = {name: thing for name, thing in things.items() if inspect.isclass(thing)}
    return [name for name, thing in classes.items() if issubclass(thing, kind) and thing is not kind]


@pytest.mark.parametrize(("page", "room", "kind"), LISTS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_a_list_has_every_class_of_its_kind(page: str, room: str, kind: type) -> None:
    left_out = [name for other in ELSEWHERE.get(page, ()) for name in names_of(room, other)]
    names = [name for name in names_of(room, kind) if name not in BASES and name not in left_out]
    shown = set(re.findall(r"\w+", text_of(page)))
    assert names
    assert [name for name in names if name not in shown] == []


@pytest.mark.parametrize("page", TABLES)
def test_tables_name_classes_that_exist(page: str) -> None:
    rows = re.findall(r"^\|.*\|$", text_of(page), re.M)
    names = {name for row in rows for name in re.findall(r"`([A-Z]\w*[a-z]\w*)(?:\(.*?\))?`", row)}
    modules = [import_module(name) for name in (*ROOMS, *OTHERS)]
    assert names
    assert [name for name in sorted(names) if not any(hasattr(module, name) for module in modules)] == []


def test_every_algorithm_of_a_paper_has_its_reference() -> None:
    def plain(text: str) -> str:
        return text.lower().replace("-", "").replace(" ", "")

    references = plain(text_of("docs/references.md"))
    names = [name for name in names_of("fl_lightning", AggregationCallback) if name not in {"Federated", "Local"}]
    assert [name for name in names if plain(name) not in references] == []


def test_every_equation_that_a_docstring_cites_is_in_the_references() -> None:
    rows = re.findall(r"^\| (\(\d+[a-z]?\)[^|]*) \|", text_of("docs/references.md"), re.M)
    known: set[int] = set()
    for row in rows:
        numbers = [int(number) for number in re.findall(r"\((\d+)", row)]
        known.update(range(numbers[0], numbers[-1] + 1) if ")-(" in row else numbers)
    cited: set[int] = set()
    for path in (ROOT / "fl_lightning").rglob("*.py"):
        for group in re.findall(r"eq\. (\(\d+[a-z]?\)(?:(?:-|, | and )\(\d+[a-z]?\))*)", path.read_text("utf-8")):
            cited.update(int(number) for number in re.findall(r"\((\d+)", group))
    assert {3, 35, 66} <= cited
    assert cited <= known


@pytest.mark.parametrize("base", QUESTIONS, ids=lambda base: base.__name__)
def test_the_page_on_extending_names_what_parts_are_asked(base: type) -> None:
    asked = {name for name, value in vars(base).items() if not name.startswith("_") and not inspect.isfunction(value)}
    named = set(re.findall(r"`(\w+)", text_of("docs/extending.md")))
    assert sorted(asked - named) == []
