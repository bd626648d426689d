"""Pictures: how many tokens one takes, where these stand, and the towers that turn pixels into embeddings."""
