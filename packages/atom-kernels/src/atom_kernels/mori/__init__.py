"""AMD's MORI: rows of GPUs of one node go to the owners of their experts, and what these made of them comes back."""
