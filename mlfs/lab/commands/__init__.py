"""The commands of the laboratory, one module a sub-command, as `mlfs.cli` has the others."""
