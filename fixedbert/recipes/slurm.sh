#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=32 --time=24:00:00
#SBATCH --requeue --signal=TERM@120
# Trains on one or more Slurm nodes. A job that is stopped, for example by its time limit, is requeued and resumes its run.
#     sbatch --nodes=4 fixedbert/recipes/slurm.sh run_pretraining.py recipes/paper_stage1.yaml --output_dir /shared/runs/stage1
log=slurm-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}.log
config=${ACCELERATE_CONFIG:-fixedbert/recipes/accelerate/ddp.yaml}
first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=${MAIN_PROCESS_PORT:-$((20000 + SLURM_JOB_ID % 10000))} # jobs that share a node need different ports
# Seconds for saving a checkpoint after SIGTERM. The default is 30, which torch 2.11 uses regardless of this setting.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110
# srun runs this command on each node, where SLURM_NODEID is 0, 1, ...
launch="exec accelerate launch --config_file '$config' --num_machines $SLURM_NNODES --machine_rank \$SLURM_NODEID \
    --num_processes $((SLURM_NNODES * SLURM_GPUS_ON_NODE)) --main_process_ip $first_node --main_process_port $port \"\$@\""
# Slurm never runs the same job twice at the same time, so a lock that exists after a restart is the job's own.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" bash -c "$launch" launch "$@" \
    ${SLURM_RESTART_COUNT:+--take_over_output_dir} 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
# If one process fails, torch stops the others with SIGTERM and reports the exit codes of all: 143 or -15 for processes that
# were stopped, other codes for processes that failed. If a process has failed, the job is not requeued.
if grep -q "stopped by SIGTERM" "$log" && ! grep -oE "exitcode *: *-?[0-9]+" "$log" | grep -vqE " (143|-15)$"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
