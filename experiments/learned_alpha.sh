#!/bin/sh
# The study of docs/learning-alpha.md: Transformer-Tiny on Tatoeba and Multi30k, eight kinds of alphas, two seeds of the random alphas over
# the same weights and data, 2,000 steps each, and one run of 10,000. Runs whose results lie in experiments/learned_alpha are not repeated;
# run the same command again to continue after an interruption.
#
#   experiments/learned_alpha.sh [DIRECTORY] [CORPUS ...]        default: learned-alpha, tatoeba and multi30k
#
# The text lies in $ENTFORMER_DATA: tatoeba-de-en/{train,val,test}.{en,de} and multi30k/tok. One run takes about 10 minutes on one core.
set -eu
out=${1:-learned-alpha}
[ $# -gt 0 ] && shift
data=${ENTFORMER_DATA:?name the folder of the text}
entformer=${ENTFORMER:-entformer}
export OMP_NUM_THREADS=1
here=$(dirname "$0")
results=$here/learned_alpha
form=model.attention.alpha_parametrization

steps=2000
run() { # NAME SETTING...
  name=$1
  shift
  [ -e "$results/$corpus/$name.json" ] && return
  set -- "$@" training.steps="$steps" training.tokens=1024 training.precision=float32 training.lr=0.003 training.warmup=400 \
    training.validate_every=250 training.validate_beam=0 training.metric=loss training.average=none training.log_every=20 \
    data.prepared="$out/data/$corpus"
  for setting; do
    shift
    set -- "$@" --set "$setting"
  done
  "$entformer" train "$recipe" --out "$out/$corpus/$name" --threads 1 "$@"
  python "$here/learned_alpha.py" collect "$out/$corpus/$name" "$results/$corpus/$name.json"
}

mkdir -p "$out"
for corpus in ${*:-tatoeba multi30k}; do
  recipe=$out/$corpus.yaml
  if [ "$corpus" = tatoeba ]; then
    text="train: $data/tatoeba-de-en/train, valid: $data/tatoeba-de-en/val, test: $data/tatoeba-de-en/test"
    text="$text, source_language: en, target_language: de"
  else
    text="corpus: multi30k, layout: tok, from: $data/multi30k"
  fi
  cat > "$recipe" <<EOF
name: $corpus
data: {$text, vocab_size: 4000}
model: {preset: tiny, attention: {normalizer: entmax, alpha: learned}}
training: {clip: 25.0}
EOF
  run softmax model.attention.normalizer=softmax model.attention.alpha=null
  run entmax15 model.attention.alpha=1.5
  for seed in a b; do
    number=$([ $seed = a ] && echo 11 || echo 12)
    run projected-1-$seed $form=projected training.alpha_lr_factor=1 training.alpha_seed=$number
    run sigmoid-1-$seed $form=sigmoid training.alpha_lr_factor=1 training.alpha_seed=$number
    run constrained-$seed $form=projected training.alpha_lr_factor=1 training.density_target=0.5 training.alpha_seed=$number
    run projected-3-$seed $form=projected training.alpha_lr_factor=3 training.alpha_seed=$number
    run projected-start-$seed $form=projected training.alpha_lr_factor=1 training.alpha_start_step=800 training.alpha_seed=$number
    run sigmoid-10-$seed $form=sigmoid training.alpha_lr_factor=10 training.alpha_seed=$number
  done
  if [ "$corpus" = tatoeba ]; then
    steps=10000
    run projected-long $form=projected training.alpha_lr_factor=1 training.alpha_seed=11
    steps=2000
  fi
  python "$here/learned_alpha.py" tables "$results/$corpus"
done
