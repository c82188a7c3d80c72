#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=32 --time=24:00:00
#SBATCH --requeue --signal=TERM@120
# Trains on one or more Slurm nodes. A job that is stopped, for example by its time limit, is requeued and resumes its run:
#     sbatch --nodes=4 fixedbert/recipes/slurm.sh run_pretraining.py recipes/paper_stage1.yaml --output_dir /shared/runs/stage1
log=slurm-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}.log
export CONFIG=${ACCELERATE_CONFIG:-fixedbert/recipes/accelerate/ddp.yaml} PORT=${MAIN_PROCESS_PORT:-29500}
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export FIRST_NODE
# Time in seconds to save a checkpoint after SIGTERM. By default, torch kills the processes after 30 seconds.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110
# srun runs this command on each node, where SLURM_NODEID is 0, 1, ...
launch='exec accelerate launch --config_file "$CONFIG" --num_machines "$SLURM_NNODES" --machine_rank "$SLURM_NODEID" \
    --num_processes $((SLURM_NNODES * SLURM_GPUS_ON_NODE)) --main_process_ip "$FIRST_NODE" --main_process_port "$PORT" "$@"'
# Slurm never runs the same job twice at the same time, so a lock that exists after a restart is the job's own.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" bash -c "$launch" launch "$@" \
    ${SLURM_RESTART_COUNT:+--take_over_output_dir} 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
if grep -q "stopped by SIGTERM" "$log"; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
