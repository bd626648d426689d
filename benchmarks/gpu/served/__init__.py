"""Engines behind their HTTP servers, from the first second of service on."""
