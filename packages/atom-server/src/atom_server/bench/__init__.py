"""Load on a running server, measured from outside: `atom bench serve`."""
