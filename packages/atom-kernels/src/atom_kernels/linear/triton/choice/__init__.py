"""Which blocks serve a linear of few rows: tuned ones, or those that a model of the GPU chooses."""
