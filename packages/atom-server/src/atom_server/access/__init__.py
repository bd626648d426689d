"""Who may use the server, for what, and how much: keys, and what each of them may spend."""
