"""The Responses API: responses that are made, stored, and read again."""
