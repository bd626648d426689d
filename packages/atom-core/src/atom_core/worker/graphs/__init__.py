"""What is captured of steps, and replayed."""
