"""Where prompts come from: a file for each kind of dataset."""

from atom_server.bench.datasets.factory import DATASETS, draw_samples
from atom_server.bench.datasets.sample import DatasetOptions, Sample

__all__ = ["DATASETS", "DatasetOptions", "Sample", "draw_samples"]
