"""One static page from files of results."""
