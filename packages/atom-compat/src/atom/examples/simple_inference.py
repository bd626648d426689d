"""``python -m atom.examples.simple_inference`` runs ``atom_server.examples.simple_inference``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("atom_server.examples.simple_inference", run_name="__main__")
