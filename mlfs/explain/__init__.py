"""Reads that no job explains: what explains them?

One story is told in two cases. Where no job is registered, the reads must tell the data set, the sampler and the seed;
where a job is registered and its reads don't come as it says, they must tell what its script does instead.

1. Reads that don't fit: `first_reads` keeps what an unregistered mount reads first, `misfit` sees from where on a job's
   opens disagree with its prediction.
2. Hypotheses: `data_sets`, `question`, `recipes` and `explanations` for reads that nobody told anything of; `variants`
   for a registered job. `popular` has the seeds that people choose.
3. Screening: `search` tries seeds by the million, in a process of its own (`seed_search`); `screen` tries variants.
4. Confirmation: `evidence` says how much reads must tell, and what further opens must say. `confirm` and `choice` check
   all that was read against what was found.
5. Installation: `inferred_jobs` and `correction` give the engine a job that goes on as the reads do.

`explainer` holds the story together, `inference` and `correction` are its two cases. What they ask of the engine, and
what the engine tells them, is in `port`: nothing here imports the engine.
"""
