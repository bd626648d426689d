"""Delta nets through Triton: convolutions and the gated delta rule, token by token and in chunks."""
