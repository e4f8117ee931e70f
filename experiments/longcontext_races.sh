#!/bin/sh
# The races of docs/long-context.md: six tasks, four methods, NAPE and rotary positions, two seeds; one after the other on
# one thread. Finished runs are kept and a stopped one goes on, so give the same command again after a stop.
#
#   experiments/longcontext_races.sh [FOLDER] [TASK ...]        longctx-races and all six tasks if not given
#
# Every method gets the task's own recipe (`longcontext/catalogue.py`), the same updates and the same sequences. NAPE comes
# first for all tasks, then rotary. A bit more than an hour on a free core.
set -eu
out=${1:-longctx-races}
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
