"""Fields that several bodies share: the model, sampling, tools, structure, and what is refused."""
