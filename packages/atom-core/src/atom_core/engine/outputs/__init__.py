"""From the news of the scheduler to the text that callers get."""
