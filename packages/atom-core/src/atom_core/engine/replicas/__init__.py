"""Several engines behind one front: which of them gets a request, which has it, and what becomes of one that dies."""
