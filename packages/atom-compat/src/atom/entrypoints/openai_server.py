"""``python -m atom.entrypoints.openai_server`` runs ``atom_server.entrypoints.openai_server``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("atom_server.entrypoints.openai_server", run_name="__main__")
