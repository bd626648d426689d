"""`atom chat`: who answers, what the user may do, and how lines are read."""
