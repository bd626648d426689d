"""From generated text to reasoning, content and tool calls: small state machines, one for each format."""
