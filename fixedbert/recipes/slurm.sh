#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=32 --time=24:00:00
#SBATCH --requeue --signal=TERM@120
# Trains on a single Slurm node. A job that is stopped, for example by its time limit, is requeued and resumes its run:
#     sbatch fixedbert/recipes/slurm.sh run_pretraining.py recipes/paper_stage1.yaml --output_dir /shared/runs/stage1
log=slurm-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}.log
# Slurm never runs the same job twice at the same time, so a lock that exists after a restart is the job's own.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
    accelerate launch --config_file "${ACCELERATE_CONFIG:-fixedbert/recipes/accelerate/ddp.yaml}" \
    --num_processes "$SLURM_GPUS_ON_NODE" "$@" \
    ${SLURM_RESTART_COUNT:+--take_over_output_dir} 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
if grep -q "stopped by SIGTERM" "$log"; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
