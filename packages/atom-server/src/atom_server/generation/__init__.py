"""One HTTP request in the engine: its samples, what they have used, their end; and how a chat's reply is read."""
