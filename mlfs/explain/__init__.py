"""Explains the reads that no job explains: finds the hypothesis that fits them.

One story has two cases. If no job is registered, the reads must show the data set, the sampler and the seed
(`inference`). If a job is registered and its reads don't come as it says, they must show what its script does instead
(`correction`). Both propose hypotheses; the rules of `mlfs.follow.hypothesis` put them in force and refute them.
`explainer` holds the story together. `port` has all that it asks of the engine, and the engine of it: nothing here
imports the engine.

In the order in which one reads best:

- bits and their bars: `chance`.
- A registered job: `variants` (other registrations), `screen` (which of them the reads fit), `words` and `word_search`
  (where in its generator's words an epoch begins), `disagreement` (which reads are asked about), `correction`.
- Reads without a job: `first_reads` and `read_again` keep them; `data_sets` and `splits` say of what they are.
- The search for a seed: `question` (what a seed must satisfy), `search` (which seeds and orders are tried, stage by
  stage: `search_stages`), `try_seeds`, with numba `search_numba` (how they are tried), `confirm` (whether one that
  passed is no chance). `usual` and `recipes` have the orders that are not torch's, `compositions` those that a script
  has printed. `seed_search` is the process of its own, `attempt` one search as the daemon's loop sees it.
- What is made of what was found: `hypotheses`, `next_epoch`, `inferred_jobs`, `inference`.
"""
