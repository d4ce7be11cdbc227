#!/usr/bin/env bash
# A batch script: sbatch job.sh TRAIN-COMMAND... trains on all nodes of the job, whose mounts are one cache.
#SBATCH --nodes=4 --ntasks-per-node=1
set -eu
# --mpi=pmi2: for MPICH and its relatives. --kill-on-bad-exit=0: a node that is lost costs time, not the job.
srun --mpi=pmi2 --kill-on-bad-exit=0 "$MLFS_SLURM/node" "$@"
