"""The order of all reads, computed from a registered job: pure, and without the framework installed.

In: a job (`mlfs.job`), the tree (`mlfs.tree.manifest`). Out: each rank's access stream. `streams` is the way in.
"""
