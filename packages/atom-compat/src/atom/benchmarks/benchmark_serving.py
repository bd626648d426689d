"""``python -m atom.benchmarks.benchmark_serving`` runs ``atom_server.benchmarks.benchmark_serving``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("atom_server.benchmarks.benchmark_serving", run_name="__main__")
