"""The laboratory: what is for studying, and no part of a mount. The simulator, policies to compare, sizing, plans made
before a job, plots, with the commands that run them. The daemon imports none of it (docs/architecture.md).
"""
