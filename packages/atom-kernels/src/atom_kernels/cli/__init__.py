"""The command line of kernel developers: explain, check, bench."""
