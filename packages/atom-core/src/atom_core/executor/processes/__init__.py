"""Ranks in processes of their own on one node: started, watched and ended as one."""
