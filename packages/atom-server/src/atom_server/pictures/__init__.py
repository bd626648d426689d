"""Pictures of requests: from a part of a message to the pixels that a model takes, decoded in a process with limits."""
