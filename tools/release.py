"""Builds a release from the last commit, checks it, and runs the README's first script from its wheel.

    python tools/release.py --home https://example.org/fl-lightning
    python tools/release.py --home https://example.org/fl-lightning --here     # with the packages that are here

It needs `pip install -e ".[release]"`. Nothing is published: at the end a line says how.

1. `git archive` copies the last commit, so that nothing else gets into a release.
2. In the copy, `[project.urls]` of pyproject.toml and the links of README.md become addresses below `--home`, at the
   tag of the version, and its first command installs from an index: it is shown without the repository around it.
3. `CITATION.cff` is validated, and must agree with pyproject.toml.
4. The source distribution and the wheel are built, and checked by `twine check --strict`.
5. The wheel is installed in a fresh environment, where the README's first script runs in an empty folder. `--here` lets
   this environment see the packages of the current one, so that PyTorch is not installed once more.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
#: A link or a picture in Markdown whose target is neither an address nor a place on the same page; not ``x[0](y)``.
_RELATIVE = re.compile(r"(?<!\w)(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_PICTURES = (".png", ".svg", ".jpg")
_INSTALL_HERE = (
    'pip install -e .    # in a clone of this repository; with the tools of its tests: pip install -e ".[dev]"\n'
)
#: Entries that both files have.
_SHARED = {"title": "name", "version": "version", "abstract": "description", "license": "license"}


def with_addresses(markdown: str, home: str, tag: str) -> str:
    """Return Markdown whose relative links are addresses: of pages as a browser shows them, of pictures as files."""

    def address(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, _, _ = target.partition("#")
        kind = "raw" if path.endswith(_PICTURES) else "blob"
        return f"{mark}[{text}]({home}/{kind}/{tag}/{target})"

    return _RELATIVE.sub(address, markdown)


def urls_table(home: str, tag: str) -> str:
    """Return the table ``[project.urls]``."""
    urls = {
        "Homepage": home,
        "Documentation": f"{home}/blob/{tag}/docs/index.md",
        "Changelog": f"{home}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{home}/issues",
        "Source": home,
    }
    lines = [f'{name} = "{address}"' for name, address in urls.items()]
    return "\n".join(["[project.urls]", *lines, ""])


def differences(citation: dict[str, Any], project: dict[str, Any]) -> list[str]:
    """Return a sentence for each entry in which CITATION.cff differs from pyproject.toml."""
    found = []
    pairs = {ours: (citation.get(ours), project.get(theirs)) for ours, theirs in _SHARED.items()}
    pairs["authors"] = (citation["authors"], project["authors"])
    pairs["keywords"] = (citation["keywords"], project["keywords"])
    for name, (here, there) in pairs.items():
        # The abstract is a sentence, which the description is not.
        if isinstance(here, str):
            here = here.removesuffix(".")
        if here != there:
            found.append(f"`{name}` of CITATION.cff is {here!r}, and that of pyproject.toml {there!r}.")
    return found


def project_of(folder: Path) -> dict[str, Any]:
    """Return the table ``[project]`` of a folder's pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def copy_of_commit(folder: Path) -> None:
    """Write the files of the last commit into a folder."""
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    call("git", "archive", "--output", archive, "HEAD", folder=ROOT)
    shutil.unpack_archive(archive, folder, filter="data")


def prepare(folder: Path, home: str) -> None:
    """Give the copy of a commit its addresses.

    Raises:
        ValidationError: If CITATION.cff has not the form of such files.
        SystemExit: If it is another release's.
    """
    import cffconvert

    project = project_of(folder)
    text = (folder / "CITATION.cff").read_text(encoding="utf-8")
    cffconvert.Citation(text).validate()
    wrong = differences(yaml.safe_load(text), project)
    if wrong:
        raise SystemExit("\n".join(wrong))
    tag = f"v{project['version']}"
    readme = folder / "README.md"
    page = with_addresses(readme.read_text(encoding="utf-8"), home, tag)
    # Who reads it in an index has no clone.
    page = page.replace(_INSTALL_HERE, "pip install fl-lightning\n", 1)
    assert "pip install -e" not in page.partition("## A first run")[0]
    readme.write_text(page, encoding="utf-8")
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n{urls_table(home, tag)}")


def first_script(readme: str) -> str:
    """Return the first script of the README."""
    found = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert found is not None
    return found[1]


def try_wheel(wheel: Path, folder: Path, *, here: bool) -> None:
    """Install a wheel in a fresh environment, and run the README's first script and the command there.

    Args:
        wheel: The wheel.
        folder: An empty folder.
        here: Whether the environment sees the packages of the current one.
    """
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    if here:
        install.append("--no-deps")
        base = {"base": str(environment), "platbase": str(environment)}
        packages = Path(sysconfig.get_path("purelib", "venv", vars=base))
        (packages / "packages_of_the_current_one.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    call(*install, folder=folder)
    (folder / "first_run.py").write_text(first_script((ROOT / "README.md").read_text(encoding="utf-8")))
    call(python, "first_run.py", folder=folder)
    call(python, "-m", "fl_lightning.command", "run", "mnist_methods", "--help", folder=folder)
    where = "import fl_lightning, sys; sys.exit(sys.prefix not in fl_lightning.__file__)"
    call(python, "-c", where, folder=folder)
    assert (folder / "first_run.png").is_file()


def call(*command: str | Path, folder: Path) -> None:
    """Run a command in a folder.

    Raises:
        CalledProcessError: If it fails.
    """
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], cwd=folder, check=True)


def main() -> None:
    """Build and check a release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", required=True, help="address of the repository, as a browser shows it")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the two files; default: dist")
    parser.add_argument("--here", action="store_true", help="try the wheel with the packages of this environment")
    options = parser.parse_args()
    home = options.home.rstrip("/")
    output = options.output.absolute()
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        copy_of_commit(copy)
        prepare(copy, home)
        call(sys.executable, "-m", "build", "--outdir", output, ".", folder=copy)
        version = project_of(copy)["version"]
        [wheel] = output.glob(f"fl_lightning-{version}-*.whl")
        source = output / f"fl_lightning-{version}.tar.gz"
        call(sys.executable, "-m", "twine", "check", "--strict", source, wheel, folder=copy)
        trial = Path(temporary) / "trial"
        trial.mkdir()
        try_wheel(wheel, trial, here=options.here)
    print(
        f"\nThe release {version} is in {output}. To publish it: git tag v{version}, then twine upload its two files."
    )


if __name__ == "__main__":
    main()
