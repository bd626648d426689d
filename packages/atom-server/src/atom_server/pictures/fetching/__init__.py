"""Files of addresses: from servers that the operator names, within limits, and never from a private network."""
