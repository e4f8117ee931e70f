// The answers of explore/engine.py, computed in this page: the same names as api.js, without a server.

const Api = (() => {
  "use strict";

  const PATIENCE = 12; // milliseconds of computing before the page may react
  const ALTERNATIVES = 5;

  class RequestError extends Error {}
  class Replaced extends Error {}

  const data = JSON.parse(Dom.at("entformer-data").textContent);
  const tokenizer = LiveTokenizer.create(data.tokenizer);
  const { facts } = data;
  const words = data.words && new Set(data.words.known);
  let network = null; // created by the first request, when the page is drawn

  const running = new Map(); // name -> number of the last request

  // Awaited between tokens: lets the page react, and stops a request that a newer one of the same name has replaced.
  function pauses(name) {
    const own = (running.get(name) || 0) + 1;
    running.set(name, own);
    let since = performance.now();
    return async () => {
      if (performance.now() - since < PATIENCE) return;
      await new Promise((resume) => setTimeout(resume));
      if (running.get(name) !== own) throw new Replaced(name);
      since = performance.now();
    };
  }

  async function prepare(text) {
    const ids = tokenizer.encode(text);
    if (!ids.length) throw new RequestError("Text contains no word; write a sentence.");
    const { tokens } = facts.limits;
    if (ids.length > tokens)
      throw new RequestError(`The sentence has ${ids.length} subwords; at most ${tokens} are allowed. Shorten it.`);
    if (!network) {
      await new Promise((resume) => setTimeout(resume)); // the page shows first that it works
      network = LiveModel.create(data.model);
    }
    return [...ids, LiveSearch.EOS];
  }

  // Words that are not in the training data.
  function unknownWords(text) {
    if (!words) return [];
    const edges = new Set(data.words.edges);
    const bare = (word) => {
      let [start, end] = [0, word.length];
      while (start < end && edges.has(word[start])) start++;
      while (end > start && edges.has(word[end - 1])) end--;
      return word.slice(start, end);
    };
    const found = LiveTokenizer.oneLine(text).split(/\s+/).map(bare);
    return [...new Set(found.filter((word) => word && !words.has(word.toLowerCase())))];
  }

  const notes = (finished) => (finished ? [] : ["The translation was cut at the length limit."]);

  async function translate({ text, beam, n_best: nBest, alphas = {} }) {
    const began = performance.now();
    const pause = pauses("translate");
    const source = await prepare(text);
    const limit = Math.max(1, Math.floor(2 * (source.length - 1) + 10));
    const found = await LiveSearch.search(network, source, { ...data.decoding, beam, nBest, limit, alphas }, pause);
    return {
      source: tokenizer.pieces(source),
      candidates: found.map(({ tokens, score, logProb, finished }) => ({
        text: tokenizer.decode(tokens),
        score,
        log_prob: logProb,
        finished,
        pieces: tokenizer.pieces(tokens),
        ids: tokens,
      })),
      notes: notes(found[0].finished),
      milliseconds: performance.now() - began,
    };
  }

  // Compressed sparse rows of a head, written row by row.
  function collector() {
    const heads = {};
    const record = (key, weights) => {
      const head = (heads[key] ??= { crow: [0], col: [], weight: [] });
      weights.forEach((weight, column) => {
        if (!(weight > 0)) return;
        head.col.push(column);
        head.weight.push(weight);
      });
      head.crow.push(head.col.length);
    };
    return { heads, record };
  }

  // Of one head on this sentence, as analysis/density.py.
  function measure(sentence, key) {
    const rows = Data.storedRows(sentence, key);
    const perRow = Array.from({ length: rows.rows }, (_, row) => Data.support(rows, row).map(({ weight }) => weight));
    const entropies = perRow.map((weights) => Math.max(0, -weights.reduce((sum, p) => sum + p * Math.log(p), 0)));
    return {
      density: Data.density(rows),
      support: Data.mean(perRow.map((weights) => weights.length)),
      effective_keys: Data.mean(entropies.map(Math.exp)),
      entropy: Data.mean(entropies),
    };
  }

  function describe(logits, token) {
    const probabilities = Array.from(network.logProbs(logits), Math.exp);
    const order = probabilities.map((_, id) => id).sort((a, b) => probabilities[b] - probabilities[a] || a - b);
    const best = order.slice(0, ALTERNATIVES).filter((id) => probabilities[id] > 0);
    const alternative = (id) => ({ piece: tokenizer.pieces([id])[0], probability: probabilities[id] });
    return { ...alternative(token), best: best.map(alternative) };
  }

  async function attention({ text, target_ids: target, alphas = {} }) {
    const began = performance.now();
    const pause = pauses("attention");
    const source = await prepare(text);
    const { heads, record } = collector();
    const run = { alphas, record };
    let state = network.start(source, run);
    const steps = [];
    const whole = [LiveSearch.BOS, ...target, LiveSearch.EOS];
    for (let t = 0; t + 1 < whole.length; t++) {
      const read = network.step(whole[t], state, run);
      state = read.state;
      steps.push(describe(read.logits, whole[t + 1]));
      await pause();
    }
    const sentence = { source: tokenizer.pieces(source), target: tokenizer.pieces(whole), heads };
    return {
      ...sentence,
      source_text: LiveTokenizer.oneLine(text),
      target_text: tokenizer.decode(target),
      measures: Object.fromEntries(Object.keys(heads).map((key) => [key, measure(sentence, key)])),
      steps,
      omitted: [],
      unknown: unknownWords(text),
      notes: [],
      milliseconds: performance.now() - began,
    };
  }

  const replaced = (error) => error instanceof Replaced;

  return { model: async () => facts, translate, attention, replaced, RequestError, tokenizer };
})();
