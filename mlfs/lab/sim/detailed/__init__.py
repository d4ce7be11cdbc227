"""The detailed simulator: the scheduler of every node of a cluster, driven by an event heap with modelled durations.

`heap` is the clock, `node` carries one scheduler's commands out, `cluster` moves bytes over what nodes share,
`training` reads and computes step by step, `run` puts them together for a scenario.
"""
