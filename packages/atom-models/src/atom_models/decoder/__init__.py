"""What every decoder-only model has around its layers, and what hosts may ask of it."""
