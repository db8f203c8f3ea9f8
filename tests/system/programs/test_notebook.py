"""A notebook that looks at a model, executed as Jupyter does."""

from __future__ import annotations

import pytest

from engine_testing import models

pytestmark = pytest.mark.slow


def test_a_cell_that_ends_in_a_model_shows_its_summary(tmp_path):
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    notebooks = pytest.importorskip("nbformat").v4
    pytest.importorskip("ipykernel", reason="a kernel is not installed")
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    path = models.affine(tmp_path)
    cells = [f"import engine\nmodel = engine.load({str(path)!r})", "model", "model.summary()",
             "print(model.summary())", "model.close()\nmodel"]  # fmt: skip
    notebook = notebooks.new_notebook(cells=[notebooks.new_code_cell(cell) for cell in cells])
    client.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(cwd=str(tmp_path))
    for cell in notebook.cells[1:3]:
        html = cell.outputs[0]["data"]["text/html"]
        assert "<table" in html
        assert "Placement" in html
        assert "cpu:0" in html
    assert "input   x  float32[batch, 3]" in notebook.cells[3].outputs[0]["text"]
    assert "closed" in notebook.cells[4].outputs[0]["data"]["text/html"]
