// Beam search over a LiveModel, step for step that of decoding/beam.py for one sentence.

const LiveSearch = (() => {
  "use strict";

  const [PAD, UNK, BOS, EOS] = [0, 1, 2, 3];
  const SHORTEST = 1; // tokens of a translation

  // log_prob / penalty(n); see decoding/length_penalty.py.
  function penaltyOf({ length_penalty: name, length_penalty_alpha: exponent }) {
    const alpha = exponent ?? 1;
    if (name === "none") return () => 1;
    return name === "average" ? (n) => Math.max(n, 1) ** alpha : (n) => ((5 + n) / 6) ** alpha;
  }

  // The `count` best continuations [{value, row, token}], best first; equal values in order of row and token.
  function best(rows, allowed, count) {
    const found = [];
    rows.forEach(({ logProb, next }, row) => {
      for (let token = 0; token < next.length; token++) {
        const value = next[token] + logProb;
        if (!allowed(token) || (found.length === count && !(value > found[count - 1].value))) continue;
        let at = found.length;
        while (at > 0 && value > found[at - 1].value) at--;
        found.splice(at, 0, { value: Math.min(value, logProb), row, token });
        if (found.length > count) found.pop();
      }
    });
    return found;
  }

  // source: ids that end in EOS. options: {beam, nBest, limit: the most tokens, length_penalty, length_penalty_alpha, alphas}.
  // pause() is awaited after every token, so that the page stays responsive. Returns [{tokens, score, logProb, finished}].
  async function search(model, source, options, pause) {
    const { beam, nBest, limit } = options;
    const penalty = penaltyOf(options);
    const run = { alphas: options.alphas, record: null };
    const count = beam > 1 ? 2 * beam : 1;
    const finished = []; // best first
    const read = (tokens, logProb, token, state) => {
      const after = model.step(token, state, run);
      return { tokens, logProb, state: after.state, logits: after.logits, next: model.logProbs(after.logits) };
    };
    let rows = [read([], 0, BOS, model.start(source, run))];
    for (let length = 0; ; length++) {
      await pause();
      const allowed = (token) =>
        token === EOS ? length >= SHORTEST : token !== PAD && token !== UNK && token !== BOS && length < limit;
      let found = best(rows, allowed, count).filter(({ value }) => value > -Infinity);
      if (!found.length && !finished.length && length < limit) {
        // A sparse output layer may give all probability to tokens that are not allowed.
        const among = rows.map((row) => ({
          ...row,
          next: model.logProbs(row.logits.map((score, token) => (allowed(token) ? score : -Infinity))),
        }));
        found = best(among, allowed, count).filter(({ value }) => value > -Infinity);
      }
      for (const { value, row, token } of found.slice(0, beam)) {
        if (token !== EOS) continue;
        const score = value / penalty(length + 1);
        let at = finished.length;
        while (at > 0 && score > finished[at - 1].score) at--;
        finished.splice(at, 0, { tokens: rows[row].tokens, score, logProb: value, finished: true });
        finished.length = Math.min(finished.length, nBest);
      }
      const live = found.filter(({ token }) => token !== EOS).slice(0, beam);
      const beaten = () =>
        finished.length >= nBest && live[0].value / penalty(limit + 1) <= finished[finished.length - 1].score;
      if (length >= limit || !live.length || beaten()) break;
      rows = live.map(({ value, row, token }) => read([...rows[row].tokens, token], value, token, rows[row].state));
    }
    if (finished.length) return finished;
    const [{ tokens, logProb }] = [...rows].sort((a, b) => b.logProb - a.logProb);
    return [{ tokens, logProb, score: logProb / penalty(tokens.length), finished: false }];
  }

  return { search, BOS, EOS, FIRST: 4 };
})();
