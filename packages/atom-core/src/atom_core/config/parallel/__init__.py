"""How the work of engines is spread over ranks, and with which settings that goes."""
