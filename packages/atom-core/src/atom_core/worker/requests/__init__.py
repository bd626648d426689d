"""What the worker keeps of each running request between steps."""
