#!/bin/bash
# Three peers under Slurm, wherever it puts them: sbatch --nodes 3 examples/deploy/slurm.sh
#SBATCH --job-name=annulus
#SBATCH --ntasks=3
#SBATCH --requeue
# The peers hear SIGUSR1 (from srun, to all of them) two minutes before the time is over.
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120

# A file system that all nodes share. One file for each run.
meet=${MEET:-file:$SLURM_SUBMIT_DIR/run}

# No task is ended because another one was: they go on without it.
srun --kill-on-bad-exit=0 "${ANNULUS:-annulus}" train --meet "$meet" "$@"
code=$?

# 75: asked to leave before the run's end. The job waits for its next turn, and goes on from where it was.
if [ $code -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
