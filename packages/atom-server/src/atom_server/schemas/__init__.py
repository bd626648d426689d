"""Request schemas (pydantic, strict and bounded) and response structs (msgspec)."""
