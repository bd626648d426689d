"""What service would compile or capture, done before a request meets it."""
