"""Failures under a simulated clock: clusters, jobs, readers and faults drawn from a seed, and what must hold whatever
comes.

`drawing` draws a case and makes it smaller, `world` lets bytes move, fail and be lost, `reading` are the readers,
`invariants` says what must hold after each step and at the end, `run` puts them together: a seed is a test.
"""
