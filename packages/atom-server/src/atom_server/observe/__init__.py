"""What the server tells those who watch it."""
