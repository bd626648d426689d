"""Low-rank adapters: what PEFT saves of them, and the second term that they give linears."""
