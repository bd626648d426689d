"""What a worker does otherwise on a CPU than on a GPU."""
