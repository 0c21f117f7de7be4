"""The notebooks run from their first cell to their last, and show what they say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long
NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a notebook with the outputs of its cells."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(request.param, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs belong to no commit"
    folder = tmp_path_factory.mktemp(request.param.stem)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(NOTEBOOKS[0].parents[2]), *([before] if before else [])])
    try:
        resources = {"metadata": {"path": str(folder)}}
        return nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def test_the_last_picture_is_shown(executed: Any) -> None:
    outputs = [output for cell in executed.cells for output in cell.get("outputs", ())]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert not [output for output in outputs if output.output_type == "error"]
    # nothing floods the page
    assert all(len(output.get("data", {}).get("text/plain", "")) < 3000 for output in outputs)
