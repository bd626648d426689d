"""What every decoder-only model has around its layers."""
