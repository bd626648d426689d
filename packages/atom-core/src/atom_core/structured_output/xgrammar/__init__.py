"""xgrammar as a backend: constraints in its notation, and what it enforces."""
