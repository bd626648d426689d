"""From what the scheduler asks for to a batch on the device, and from the device back to token ids."""
