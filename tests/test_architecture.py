"""Rooms import rooms below them alone, heavy packages are imported late, names have one meaning, files stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(p for folder in ("fl_lightning", "datamodules", "recipes") for p in (ROOT / folder).rglob("*.py"))
LIBRARY = [path for path in FILES if ROOT / "fl_lightning" in path.parents]
PRIVATE = ROOT / "fl_lightning" / "_lightning"
#: The rooms of the library, from the bottom up.
ROOMS = [
    "tools",
    "partitioners",
    "parts",
    "data",
    "models",
    "_lightning",
    "callbacks",
    "clients",
    "executors",
    "loop",
    "algorithms",
    "diagnostics",
    "experiment",
    "report",
]
TOOLS = {
    *("arguments", "atomic_file", "checked_file", "command_line", "data_folder", "drawn", "durations"),
    *(
        "log_lines",
        "metric_words",
        "metrics",
        "notebook",
        "object_attributes",
        "other_lightning",
        "plain_copies",
        "representation",
        "seeding",
        "sentences",
        "shadowing",
        "short_texts",
        "signatures",
        "super_calls",
        "surroundings",
        "tensor_bytes",
        "versions",
    ),
}
#: Imports that go up, and why: ``run_presets`` is still found in its earlier place.
UPWARD = {("fl_lightning.experiment", "fl_lightning.report")}
MATHEMATICS = [
    path
    for path in LIBRARY
    if {"partitioners", "parts"} & set(path.relative_to(ROOT).parts)
    or path.relative_to(ROOT / "fl_lightning").as_posix()
    in {*(f"{tool}.py" for tool in TOOLS), "data/batches.py", "data/splits.py", "data/standardize.py"}
]
HEAVY = {"cvxpy", "datasets", "dp_accounting", "matplotlib", "pandas", "pyarrow", "sklearn", "wandb"}


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax."""
    return ast.parse(path.read_text())


def imports(path: Path, *, module_level: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of every import; of those outside functions and type checking only, if asked."""
    tree = tree_of(path)
    nodes = list(ast.walk(tree))
    if module_level:
        nodes = [node for statement in tree.body if not isinstance(statement, ast.If) for node in shallow(statement)]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def shallow(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a statement without entering functions."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from shallow(child)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """Return a file's module; a package's is its ``__init__.py``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in LIBRARY}


def room_of(module: str) -> str | None:
    """Return the room of a module of the library; ``None`` for the library itself."""
    names = module.split(".")
    return None if len(names) == 1 else "tools" if names[1] in TOOLS else names[1]


def own_imports(path: Path) -> Iterator[str]:
    """Yield the library's modules that a file imports anywhere, in functions and by name too."""
    for module, name in imports(path):
        if module.split(".")[0] == "fl_lightning":
            yield f"{module}.{name}" if f"{module}.{name}" in MODULES else module
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and str(argument.value).split(".")[0] == "fl_lightning":
                yield str(argument.value)


def packages_of(module: str) -> list[str]:
    """Return a module and the packages, without the library itself, whose files its import runs."""
    names = module.split(".")
    return [".".join(names[:length]) for length in range(2, len(names) + 1)]


def reached(graph: Mapping[str, set[str]], module: str) -> set[str]:
    """Return a module and all that it imports, directly or not."""
    seen, todo = {module}, [module]
    while todo:
        new = graph.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen


def test_the_files_are_found() -> None:
    assert len(MATHEMATICS) > 15
    assert len(FILES) > len(LIBRARY) > len(MATHEMATICS)
    assert {room_of(module) for module in MODULES} == {None, *ROOMS}


def test_imports_are_read_wherever_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        "import fl_lightning.seeding\n"
        "from fl_lightning.parts import Mixing, traffic\n"
        "def late():\n"
        "    from fl_lightning.report import partition_report\n"
        "    return import_module('fl_lightning.models')\n"
    )
    assert list(own_imports(file)) == [
        "fl_lightning.seeding",
        "fl_lightning.parts",
        "fl_lightning.parts.traffic",
        "fl_lightning.report",
        "fl_lightning.models",
    ]


# ---- rooms ----


def test_a_room_imports_rooms_below_it_alone() -> None:
    height = {room: place for place, room in enumerate(ROOMS)}
    for module, path in MODULES.items():
        own = room_of(module)
        for used in own_imports(path) if own is not None else ():
            room = room_of(used)
            if room is None:  # the library itself, which imports the algorithms
                assert height[own] > height["algorithms"], (module, used)
            elif (module, used) not in UPWARD:
                assert height[room] <= height[own], (module, used)


def test_no_file_imports_itself_by_way_of_others() -> None:
    # importing a.b.c runs a/b/__init__.py too, unless that is under way already: a package imports its own files
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        used = {used for used in own_imports(path) if (module, used) not in UPWARD and used != "fl_lightning"}
        run = {name for each in used for name in packages_of(each)}
        graph[module] = used | {name for name in run if not module.startswith(f"{name}.")} - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"an import circle: {' <- '.join(error.args[1])}")


def test_no_import_for_type_checking_hides_a_circle() -> None:
    for path in LIBRARY:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                for statement in ast.walk(node):
                    if isinstance(statement, (ast.Import, ast.ImportFrom)):
                        assert "fl_lightning" not in ast.unparse(statement), (path, ast.unparse(statement))


def test_parts_know_torch_and_numpy_alone() -> None:
    graph = {module: set(own_imports(path)) for module, path in MODULES.items()}
    parts = [module for module in MODULES if room_of(module) == "parts"]
    assert len(parts) > 25
    needed = set().union(*(reached(graph, module) for module in parts))
    assert {room_of(module) for module in needed} == {"parts", "tools"}
    packages = {name.split(".")[0] for module in needed for name, _ in imports(MODULES[module])}
    # the accountant of DifferentialPrivacy is imported when it is needed
    assert packages - set(sys.stdlib_module_names) == {"dp_accounting", "fl_lightning", "numpy", "torch"}


def test_parts_are_imported_without_lightning() -> None:
    # the library's own __init__.py imports Lightning, so that an empty package stands in for it
    program = (
        "import sys, types\n"
        "package = sys.modules['fl_lightning'] = types.ModuleType('fl_lightning')\n"
        f"package.__path__ = [{str(ROOT / 'fl_lightning')!r}]\n"
        "import fl_lightning.parts\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {"torch", "numpy", "fl_lightning"} <= loaded
    assert not loaded & {"lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics", "torchvision", *HEAVY}


def type_names(path: Path) -> Iterator[str]:
    """Yield the names of a file's classes and of its aliases of types."""
    tree = tree_of(path)
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            is_union = isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
            # constants are in capitals, TypeVars are calls
            if (is_union or isinstance(value, (ast.Subscript, ast.Name, ast.Attribute, ast.Call))) and _is_type(name):
                yield name


def _is_type(name: str) -> bool:
    name = name.lstrip("_")
    return name[:1].isupper() and not (name.isupper() and len(name) > 1)


def test_a_name_of_a_type_has_one_meaning() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in LIBRARY:
        for name in type_names(path):
            places[name].append(name_of(path))
    assert len(places) > 200
    assert {"ClientResult", "Scheduled", "Weighting", "RunOptions"} <= set(places)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


# ---- other packages ----


def test_imports_run_from_recipes_to_datamodules_to_the_library() -> None:
    everything = {"fl_lightning", "datamodules", "recipes"}
    allowed = {"fl_lightning": {"fl_lightning"}, "datamodules": {"fl_lightning", "datamodules"}, "recipes": everything}
    for path in FILES:
        used = {module.split(".")[0] for module, _ in imports(path)} & everything
        assert used <= allowed[path.relative_to(ROOT).parts[0]], path


def test_mathematics_knows_neither_lightning_nor_the_loop() -> None:
    for path in MATHEMATICS:
        for module, _ in imports(path):
            assert module.split(".")[0] not in {"lightning", "pytorch_lightning"}, path
        for module in own_imports(path):
            assert room_of(module) in {"tools", "partitioners", "parts", "data"}, (path, module)


def test_lightnings_private_names_are_used_in_one_place() -> None:
    for path in LIBRARY:
        if PRIVATE in path.parents:
            continue
        for module, name in imports(path):
            if module.split(".")[0] == "lightning":
                assert not name.startswith("_"), (path, module, name)
                assert not module.startswith(("lightning.pytorch.loops", "lightning.pytorch.trainer")), (path, module)
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                owner = ast.unparse(node.value).split(".")[-1]
                assert owner not in {"trainer", "pl_module", "strategy", "fit_loop"}, (path, ast.unparse(node))


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    for path in FILES:
        assert not {module.split(".")[0] for module, _ in imports(path, module_level=True)} & HEAVY, path


def test_files_stay_short() -> None:
    assert {name_of(path) for path in FILES if len(path.read_text().splitlines()) > 320} == set()


def test_importing_the_library_loads_no_heavy_package_that_lightning_does_not() -> None:
    program = (
        "import sys\n"
        "import lightning, torchmetrics, torchvision\n"
        "before = set(sys.modules)\n"
        "import fl_lightning, fl_lightning.models\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "fl_lightning" in loaded
    assert not loaded & set(HEAVY)


def test_the_library_is_imported_where_torchvision_cannot_be() -> None:
    # Lightning and torchmetrics look for torchvision themselves; what they load is not the library's doing
    program = (
        "import sys\n"
        "import lightning, torchmetrics\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torchvision':\n"
        "            raise ImportError('torchvision cannot be imported')\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'torchvision']:\n"
        "    del sys.modules[name]\n"
        "sys.meta_path.insert(0, Block())\n"
        "before = set(sys.modules)\n"
        "import fl_lightning\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "fl_lightning.loop" in loaded
    assert not {name.split(".")[0] for name in loaded} & {"torchvision", *HEAVY}
    late = ("fl_lightning.models", "fl_lightning.diagnostics", "fl_lightning.experiment", "fl_lightning.report")
    assert not [name for name in loaded if name.startswith(late)]
