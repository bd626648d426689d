"""llguidance as a backend: constraints in its notation, and vocabularies as it takes them."""
