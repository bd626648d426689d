"""``python -m atom.examples.profile_offline`` runs ``atom_server.examples.profile_offline``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("atom_server.examples.profile_offline", run_name="__main__")
