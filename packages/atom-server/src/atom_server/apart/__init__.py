"""A front of two kinds of servers: some compute prompts, others go on from them."""
