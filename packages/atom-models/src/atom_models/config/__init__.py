"""What architectures read of `config.json`, and what is done about fields that they do not have."""
