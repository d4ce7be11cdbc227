"""Finds out what explains the reads that no job explains.

One story has two cases. If no job is registered, the reads must show the data set, the sampler and the seed. If a job
is registered and its reads don't come as it says, they must show what its script does instead.

1. Reads that don't fit: `first_reads` keeps what an unregistered mount reads first, `read_again` all that it reads.
   `misfit` sees from where on a job's opens disagree with its prediction, `correction` where their epoch begins.
2. Hypotheses (`mlfs.follow.hypothesis`): `screen` tries the `variants` of a registration, `words` and `word_search`
   look where in its generator's words an epoch begins; `search` tries seeds by the million, in a process of its own
   (`seed_search`, which an `attempt` begins and ends), and `explanations` says which jobs a seed may stand for,
   and goes by the epochs before. `data_sets` says which files are samples, `usual` which seeds and orders people
   choose; `recipes` tries these, also within a part of a data set (`splits`). `question` has the ways in which a seed's
   order may be read, and what each demands of the seed; `confirm` holds a seed against all reads.
3. The two rules: `mlfs.follow.hypothesis.ruling` says which hypothesis takes a registered job's place, and `refuted`
   beside it which job goes that nobody registered.
4. Jobs in force: `inferred_jobs` puts those there that nobody registered. In place of a registered job `correction`
   proposes another one to the job's list of rivals, and the list decides.

`explainer` holds the story together, `inference` and `correction` are its two cases. `port` has all that they ask of
the engine, and the engine of them: nothing here imports the engine.
"""
