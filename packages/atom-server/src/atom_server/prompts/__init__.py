"""From texts, token ids and conversations to prompts, beside the event loop."""
