"""The `atom` command: one file for each sub-command."""
