"""What the settings say of adapters."""
