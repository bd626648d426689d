"""A draft model behind the steps of the model that generates."""
