"""Failures under a simulated clock: clusters, jobs, readers and faults are drawn from a seed, and what happens is
checked all the time. So each seed is a test.

`drawing` draws a case and makes it smaller. `world` moves bytes, and has them fail or get lost. `agents` are the agents
of nodes that have them. `reading` has the readers. `invariants` says what must hold after each step and at the end.
`run` puts them together. `steady` lets a cluster run for a day of its own clock.
"""
