"""Composes data, models, Ray Tune and MLflow into sweeps; knows no HTTP server and no job database."""
