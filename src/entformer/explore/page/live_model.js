// A translation model of entformer, run in the browser: the same equations as models/seq2seq.py, one token at a time. Weights
// are half floats, rounded once when the page was written; everything is computed in double precision.

const LiveModel = (() => {
  "use strict";

  const NORM_EPS = 1e-5; // of torch's LayerNorm
  const POSITION_BASE = 10000;

  function halfToNumber(bits) {
    const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    return exponent ? sign * (1 + fraction / 1024) * 2 ** (exponent - 15) : sign * fraction * 2 ** -24; // all are finite
  }

  // Base64 of little-endian half floats.
  function readHalves(text) {
    const table = Float32Array.from({ length: 65536 }, (_, bits) => halfToNumber(bits));
    const bytes = atob(text);
    const values = new Float32Array(bytes.length / 2);
    for (let i = 0; i < values.length; i++) values[i] = table[bytes.charCodeAt(2 * i) | (bytes.charCodeAt(2 * i + 1) << 8)];
    return values;
  }

  // W x + b; weight holds the rows of W.
  function affine(x, weight, bias) {
    const size = x.length;
    const whole = size - (size % 4);
    const y = new Float64Array(weight.length / size);
    for (let row = 0, start = 0; row < y.length; row++, start += size) {
      let [a, b, c, d] = [0, 0, 0, 0];
      for (let i = 0; i < whole; i += 4) {
        a += weight[start + i] * x[i];
        b += weight[start + i + 1] * x[i + 1];
        c += weight[start + i + 2] * x[i + 2];
        d += weight[start + i + 3] * x[i + 3];
      }
      for (let i = whole; i < size; i++) a += weight[start + i] * x[i];
      y[row] = a + b + (c + d) + (bias ? bias[row] : 0);
    }
    return y;
  }

  const add = (x, y) => x.map((value, i) => value + y[i]);

  function layerNorm(x, { weight, bias }) {
    const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
    const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
    const scale = 1 / Math.sqrt(variance + NORM_EPS);
    return x.map((value, i) => (value - mean) * scale * weight[i] + bias[i]);
  }

  // All sines, then all cosines, of t / 10000^(2i / width).
  function sinusoidal(t, width) {
    const half = Math.ceil(width / 2);
    const angle = (i) => t * POSITION_BASE ** ((-2 * i) / width);
    return Float64Array.from({ length: width }, (_, i) => (i < half ? Math.sin(angle(i)) : Math.cos(angle(i - half))));
  }

  // Rotates the pairs (i, i + size / 2) of every head by t / base^(2i / size).
  function rotate(x, t, size, base) {
    const y = new Float64Array(x.length);
    const half = size / 2;
    for (let at = 0; at < x.length; at++) {
      const i = at % size;
      const angle = t * base ** ((-2 * (i % half)) / size);
      y[at] = x[at] * Math.cos(angle) + (i < half ? -x[at + half] : x[at - half]) * Math.sin(angle);
    }
    return y;
  }

  // {config, layers: {"encoder.0": {alphas, slopes}}, tensors: [[name, size]], weights}; see explore/live.py.
  function create({ config, layers, tensors, weights }) {
    const { width, heads } = config;
    const size = width / heads;
    const all = readHalves(weights);
    const stored = new Map();
    let offset = 0;
    for (const [name, count] of tensors) {
      stored.set(name, all.subarray(offset, offset + count));
      offset += count;
    }
    const tensor = (name) => stored.get(name);
    const pair = (name) => ({ weight: tensor(`${name}.weight`), bias: tensor(`${name}.bias`) });
    const through = (x, { weight, bias }) => affine(x, weight, bias);

    // Projections of queries, keys and values, and the output, of one attention.
    function attention(name, attnType, layer) {
      const part = (index, tensorOf, count) => tensorOf && tensorOf.subarray(index * count, (index + 1) * count);
      const [weight, bias] = [tensor(`${name}.in_proj_weight`), tensor(`${name}.in_proj_bias`)];
      const [query, key, value] = [0, 1, 2].map((index) => ({
        weight: part(index, weight, width * width),
        bias: part(index, bias, width),
      }));
      const own = layers[`${attnType}.${layer}`];
      const names = own.alphas.map((_, head) => `${attnType}.${layer}.${head}`);
      const rotary = config.positions === "rotary" && attnType !== "cross";
      const turned = (x, t) => (rotary ? rotate(x, t, size, config.rotary_base) : x);
      return { query, key, value, out: pair(`${name}.out_proj`), ...own, names, turned };
    }

    // Each sublayer f: x + f(norm(x)), or norm(x + f(x)).
    function residual(name) {
      const norm = pair(`${name}.norm`);
      return config.norm === "pre"
        ? { before: (x) => layerNorm(x, norm), after: add }
        : { before: (x) => x, after: (x, y) => layerNorm(add(x, y), norm) };
    }

    function feedForward(name) {
      const [expand, contract] = [pair(`${name}.expand`), pair(`${name}.contract`)];
      return (x) => through(through(x, expand).map((value) => Math.max(value, 0)), contract);
    }

    const numbered = (count, make) => Array.from({ length: count }, (_, index) => make(index));
    const encoder = numbered(config.encoder_layers, (n) => ({
      attention: attention(`encoder.${n}.attention`, "encoder", n),
      around: residual(`encoder.${n}.around_attention`),
      feedForward: feedForward(`encoder.${n}.feed_forward`),
      last: residual(`encoder.${n}.around_feed_forward`),
    }));
    const decoder = numbered(config.decoder_layers, (n) => ({
      attention: attention(`decoder.${n}.attention`, "decoder", n),
      around: residual(`decoder.${n}.around_attention`),
      cross: attention(`decoder.${n}.cross_attention`, "cross", n),
      aroundCross: residual(`decoder.${n}.around_cross_attention`),
      feedForward: feedForward(`decoder.${n}.feed_forward`),
      last: residual(`decoder.${n}.around_feed_forward`),
    }));
    const ending = (name) => (config.norm === "pre" ? (x) => layerNorm(x, pair(name)) : (x) => x);
    const [encoderEnd, decoderEnd] = [ending("encoder_norm"), ending("decoder_norm")];
    const sourceWeight = tensor("source_embedding");
    const targetWeight = tensor("target_embedding") || sourceWeight;
    const lastWeight = tensor("output_weight") || targetWeight;

    function embed(weight, id, t) {
      const x = Float64Array.from(weight.subarray(id * width, (id + 1) * width), (value) => value * Math.sqrt(width));
      return config.positions === "sinusoidal" ? add(x, sinusoidal(t, width)) : x;
    }

    // One query at position t over keys and values (a row each). alphas: head -> changed alpha; record(head, weights).
    function attend(own, query, t, { keys, values }, { alphas, record }) {
      const mixed = new Float64Array(width);
      for (let head = 0; head < heads; head++) {
        const start = head * size;
        const slope = own.slopes ? own.slopes[head] : 0;
        const scores = Float64Array.from(keys, (key, j) => {
          let dot = 0;
          for (let i = start; i < start + size; i++) dot += query[i] * key[i];
          return dot / Math.sqrt(size) - slope * Math.abs(t - j);
        });
        const weights = EntmaxSolver.entmax(scores, alphas[own.names[head]] ?? own.alphas[head]);
        weights.forEach((weight, j) => {
          if (weight > 0) for (let i = start; i < start + size; i++) mixed[i] += weight * values[j][i];
        });
        if (record) record(own.names[head], weights);
      }
      return through(mixed, own.out);
    }

    function encode(ids, run) {
      let rows = ids.map((id, t) => embed(sourceWeight, id, t));
      for (const { attention: own, around, feedForward: feed, last } of encoder) {
        const inputs = rows.map(around.before);
        const memory = {
          keys: inputs.map((x, t) => own.turned(through(x, own.key), t)),
          values: inputs.map((x) => through(x, own.value)),
        };
        rows = rows.map((x, t) => {
          const query = own.turned(through(inputs[t], own.query), t);
          const y = around.after(x, attend(own, query, t, memory, run));
          return last.after(y, feed(last.before(y)));
        });
      }
      return rows.map(encoderEnd);
    }

    // The state of a decoder that has read nothing. run: {alphas: {head: alpha}, record(head, weights) or null}.
    function start(ids, run) {
      const memory = encode(ids, run);
      const cross = decoder.map(({ cross: own }) => ({
        keys: memory.map((x) => through(x, own.key)),
        values: memory.map((x) => through(x, own.value)),
      }));
      return { cross, past: decoder.map(() => ({ keys: [], values: [] })) };
    }

    // Reads one token. Returns the state after it, and the scores of the next one; `state` itself is unchanged.
    function step(token, state, run) {
      const t = state.past[0].keys.length;
      const past = [];
      let x = embed(targetWeight, token, t);
      decoder.forEach((layer, n) => {
        const { attention: own, cross } = layer;
        const y = layer.around.before(x);
        past.push({
          keys: [...state.past[n].keys, own.turned(through(y, own.key), t)],
          values: [...state.past[n].values, through(y, own.value)],
        });
        x = layer.around.after(x, attend(own, own.turned(through(y, own.query), t), t, past[n], run));
        const query = through(layer.aroundCross.before(x), cross.query);
        x = layer.aroundCross.after(x, attend(cross, query, t, state.cross[n], run));
        x = layer.last.after(x, layer.feedForward(layer.last.before(x)));
      });
      return { state: { cross: state.cross, past }, logits: affine(decoderEnd(x), lastWeight, null) };
    }

    // Log-probabilities of scores, -Infinity where the probability is exactly zero.
    function logProbs(logits) {
      if (config.output === "entmax") return EntmaxSolver.entmax(logits, config.output_alpha).map(Math.log);
      const top = logits.reduce((best, score) => Math.max(best, score), -Infinity);
      const sum = logits.reduce((total, score) => total + Math.exp(score - top), 0);
      return logits.map((score) => score - top - Math.log(sum));
    }

    return { start, step, logProbs };
  }

  return { create };
})();
