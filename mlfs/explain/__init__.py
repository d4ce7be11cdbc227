"""Finds out what explains the reads that no job explains.

One story has two cases. If no job is registered, the reads must show the data set, the sampler and the seed
(`inference`). If a job is registered and its reads don't come as it says, they must show what its script does instead
(`correction`). Reads that don't fit are kept by `first_reads` and `read_again`. Hypotheses come from `variants`, which
`screen` tries, from `words` and `word_search`, from `search` in a process of its own, from `recipes`, and from
`explanations`, which says what a seed may stand for and goes by the epochs before. The rules of
`mlfs.follow.hypothesis` put them in force and refute them.

`explainer` holds the story together. `port` has all that it asks of the engine, and the engine of it: nothing here
imports the engine.
"""
