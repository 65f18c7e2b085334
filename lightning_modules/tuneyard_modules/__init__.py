"""Sequence models and their training objectives as PyTorch Lightning modules; knows no Ray, MLflow or run folders."""
