"""What MLflow runs to serve a packaged model ("models from code"): a door to `package.py` and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext


class ServedModel(PythonModel):
    """Takes texts as a list or a frame of one column; MLflow reads the hints as signature."""

    def load_context(self, context: PythonModelContext) -> None:
        from tuneyard_pipelines.package import load  # torch, which a driver that registers a model does not need

        self._model = load(Path(context.artifacts["model"]))

    def predict(
        self, context: PythonModelContext, model_input: list[str], params: dict[str, Any] | None = None
    ) -> list[str]:
        return self._model.predict(model_input)


set_model(ServedModel())
