"""What MLflow runs to serve a packaged model ("models from code"): a door to `package.py` and nothing else."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from tuneyard_pipelines.package import load


class TranslationModel(PythonModel):
    """Takes texts as a list or as the first column of a frame; gives their translations as a list."""

    def load_context(self, context: PythonModelContext) -> None:
        self._model = load(Path(context.artifacts["model"]))

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # MLflow reads hints as a schema
        texts = model_input.iloc[:, 0] if isinstance(model_input, pd.DataFrame) else model_input
        return self._model.predict([str(text) for text in texts])


set_model(TranslationModel())
