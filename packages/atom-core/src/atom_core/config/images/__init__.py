"""Settings of pictures."""
