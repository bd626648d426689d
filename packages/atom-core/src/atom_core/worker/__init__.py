"""The worker: per-request device state, input batches, the model runner and the sampler. Imports torch."""
