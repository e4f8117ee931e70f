#!/bin/sh
# Language models of books: eight kinds of attention and positions, the same text, order, steps and seed, trained at 256 tokens, then read to
# 4,096. Finished parts are kept; run the same command again to continue after an interruption.
#
#   experiments/lm_books.sh [DIRECTORY] [MODEL ...]        default: lm-books and all eight; SEED=2 for another seed
#
# The text lies in $ENTFORMER_DATA/books: *.txt.gz; moby-dick.txt.gz is not trained on. `python experiments/lm_books.py DIRECTORY` then writes
# the table and the figure. One model takes about ten minutes on one core.
set -eu
out=${1:-lm-books}
[ $# -gt 0 ] && shift
books=${ENTFORMER_DATA:?name the folder of the text}/books
entformer=${ENTFORMER:-entformer}
seed=${SEED:-1}
export OMP_NUM_THREADS=1

if [ ! -e "$out/data/prep.json" ]; then
  set -- "$books/moby-dick.txt.gz" "$@"
  test_text=$1
  shift
  # shellcheck disable=SC2046
  "$entformer" prep "$out/data" --text $(ls "$books"/*.txt.gz | grep -v moby-dick) --test "$test_text" --vocab-size 2000
fi

for model in ${*:-softmax entmax entmax15 asentmax ssmax rela softmax-rotary entmax-rotary}; do
  run=$out/$model-$seed
  normalizer=${model%-rotary}
  recipe=lm-books-$normalizer
  set -- "training.seed=$seed"
  case $model in *-rotary) set -- "$@" model.positions=rotary ;; esac
  case $normalizer in
    ssmax | asentmax)
      recipe=lm-books-softmax
      set -- "$@" "model.attention.normalizer=$normalizer"
      ;;
  esac
  set -- "$@" data.prepared="$out/data" model.layers=4 model.heads=6 model.hidden=384 training.steps="${STEPS:-750}" training.tokens=2048 \
    training.lr=0.003 training.warmup=75 training.precision=float32 training.validate_every=375 training.log_every=25
  for setting; do
    shift
    set -- "$@" --set "$setting"
  done
  if [ ! -e "$run/done" ]; then
    "$entformer" train "$recipe" --out "$run" --threads 1 "$@"
    touch "$run/done"
  fi
  for split in valid test; do # the ends of the books that were trained on, and Moby-Dick
    [ -e "$run/$split.json" ] || { "$entformer" score --run "$run" --test-set $split --stride 256 --threads 1 --json > "$run/part.json" &&
      mv "$run/part.json" "$run/$split.json"; }
  done
  [ -e "$run/lengths/results.json" ] || "$entformer" longctx lm "$run" --windows 6 --threads 1 --out "$run/lengths"
done
