#!/bin/sh
# The comparison of docs/long-context.md: six tasks, four methods, NAPE and rotary positions, two seeds, on one thread. Finished runs
# are kept; run the same command again to continue after an interruption.
#
#   experiments/length_generalization.sh [DIRECTORY] [TASK ...]        default: length-generalization and all six tasks
#
# Every method gets the task's own settings, the same number of steps and the same sequences. A bit more than an hour on one core.
set -eu
out=${1:-length-generalization}
[ $# -gt 0 ] && shift
tasks=${*:-sort copy reverse flip-flop n-back mqmtar}
entformer=${ENTFORMER:-entformer}
export OMP_NUM_THREADS=1
for positions in nape nape,rope; do
  for task in $tasks; do
    "$entformer" longctx "$task" --methods softmax,ssmax,entmax,asentmax --positions "$positions" --seeds 2 --out "$out/$task"
  done
done
"$entformer" report "$out" --out "$out/report.html"
