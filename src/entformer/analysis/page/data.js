// Reading ReportData. Stored weights are compressed sparse rows: query i gives weight[crow[i]..crow[i+1]) to the keys
// col[crow[i]..crow[i+1]). Rows with another alpha are computed from the stored scores.

const Data = (() => {
  "use strict";

  const ATTENTION_TYPES = ["encoder", "decoder", "cross"];
  const ATTENTION_TITLES = {
    encoder: "Encoder self-attention",
    decoder: "Decoder self-attention",
    cross: "Cross attention",
  };
  const FIXED_ALPHA = { softmax: 1, ssmax: 1, entmax15: 1.5, sparsemax: 2 };
  const MASKED = -32768;

  const keyOf = (head) => `${head.attn_type}.${head.layer}.${head.head}`;
  const parseKey = (key) => {
    const [attnType, layer, head] = key.split(".");
    return { attnType, layer: Number(layer), head: Number(head) };
  };
  const titleOf = (key) => {
    const { attnType, layer, head } = parseKey(key);
    return `${ATTENTION_TITLES[attnType]}, layer ${layer}, head ${head}`;
  };
  const attnTypes = (run) => ATTENTION_TYPES.filter((attnType) => run.heads.some((head) => head.attn_type === attnType));
  const allAttnTypes = (runs) => ATTENTION_TYPES.filter((attnType) => runs.some((run) => attnTypes(run).includes(attnType)));
  const headsOf = (run, attnType) => run.heads.filter((head) => head.attn_type === attnType);
  const findHead = (run, key) => run.heads.find((head) => keyOf(head) === key);

  // The alpha of a head: learned, or fixed by its normalizer; null for normalizers without any (ReLA).
  const alphaOf = (run, head) => head.alpha ?? FIXED_ALPHA[run.normalizers?.[head.attn_type]] ?? null;

  function tokensOf(sentence, attnType) {
    const queries = attnType === "encoder" ? sentence.source : sentence.target;
    const keys = attnType === "decoder" ? sentence.target : sentence.source;
    return { queries: withCharacters(queries), keys: withCharacters(keys) };
  }

  // Pieces in which bytes that spell a character are named by it: "犬 1/3", "犬 2/3", "犬 3/3".
  function withCharacters(pieces) {
    const named = [...pieces];
    const strict = new TextDecoder("utf-8", { fatal: true });
    for (let at = 0; at < pieces.length; at++) {
      for (let size = 1; size <= 4 && pieces.slice(at, at + size).every((piece) => BYTE.test(piece)); size++) {
        try {
          const bytes = pieces.slice(at, at + size).map((piece) => parseInt(BYTE.exec(piece)[1], 16));
          const character = strict.decode(Uint8Array.from(bytes));
          for (let part = 0; part < size; part++) named[at + part] = `${character} ${part + 1}/${size}`;
          at += size - 1;
          break;
        } catch {
          // Not a whole character yet.
        }
      }
    }
    return named;
  }

  // {rows, columns, crow, col, weight, causal, cut}. cut: smaller weights were dropped to keep the page small; 0: all are
  // stored, and all others are exactly 0.
  function storedRows(sentence, key) {
    const stored = (sentence.heads || {})[key];
    if (!stored) return null;
    const { attnType } = parseKey(key);
    const rows = stored.crow.length - 1;
    const columns = attnType === "decoder" ? rows : sentence.source.length;
    const { crow, col, weight } = stored;
    return { rows, columns, crow, col, weight, causal: attnType === "decoder", cut: stored.cut || 0 };
  }

  const visible = (rows, row) => (rows.causal ? Math.min(row + 1, rows.columns) : rows.columns);

  const hasScores = (sentence, key) => Boolean(sentence.heads?.[key]?.scores);

  const decoded = new WeakMap();

  // (rows x columns) numbers, -Infinity where masked.
  function scoresOf(stored) {
    if (!decoded.has(stored)) {
      const bytes = Uint8Array.from(atob(stored.data), (letter) => letter.charCodeAt(0));
      const view = new DataView(bytes.buffer);
      const values = new Float64Array(stored.rows * stored.columns);
      for (let i = 0; i < values.length; i++) {
        const level = view.getInt16(2 * i, true); // little-endian, as numpy wrote it
        values[i] = level === MASKED ? -Infinity : level * stored.scale + stored.offset;
      }
      decoded.set(stored, values);
    }
    return decoded.get(stored);
  }

  function recomputedRows(sentence, key, alpha) {
    const stored = sentence.heads[key].scores;
    const values = scoresOf(stored);
    const crow = [0];
    const col = [];
    const weight = [];
    for (let row = 0; row < stored.rows; row++) {
      const weights = EntmaxSolver.entmax(values.subarray(row * stored.columns, (row + 1) * stored.columns), alpha);
      weights.forEach((value, column) => {
        if (value > 0) {
          col.push(column);
          weight.push(value);
        }
      });
      crow.push(col.length);
    }
    return { rows: stored.rows, columns: stored.columns, crow, col, weight, causal: parseKey(key).attnType === "decoder", cut: 0 };
  }

  // The row as [{column, weight}], largest first.
  function support(rows, row) {
    const found = [];
    for (let at = rows.crow[row]; at < rows.crow[row + 1]; at++) found.push({ column: rows.col[at], weight: rows.weight[at] });
    return found.sort((a, b) => b.weight - a.weight || a.column - b.column);
  }

  // The measure "density" of one sentence.
  function density(rows) {
    let sum = 0;
    for (let row = 0; row < rows.rows; row++) sum += (rows.crow[row + 1] - rows.crow[row]) / visible(rows, row);
    return rows.rows ? sum / rows.rows : 0;
  }

  // "▁man" starts a word; other pieces continue the one before.
  const SPECIAL = { "<s>": "start", "</s>": "end", "<pad>": "pad", "<unk>": "unknown" };
  const BYTE = /^<0x([0-9A-F]{2})>$/;
  function shown(piece) {
    if (Object.hasOwn(SPECIAL, piece)) return { text: SPECIAL[piece], special: true, starts: true };
    const byte = BYTE.exec(piece);
    if (byte) return { text: `byte ${byte[1]}`, special: true, starts: false };
    const starts = piece.startsWith("▁");
    return { text: starts ? piece.slice(1) || "␣" : piece, special: false, starts };
  }

  // What a text of the run is called: models of one side read texts.
  const noun = (run) => (run.languages.some(Boolean) ? "sentence" : "text");

  // "12 source and 14 target tokens"; of models of one side "14 tokens".
  function sizes(source, target) {
    if (source && target) return `${Numbers.count(source)} source and ${Numbers.count(target)} target tokens`;
    return `${Numbers.count(source || target)} tokens`;
  }

  // The weight of a key that is not stored.
  const restText = (rows) => (rows.cut ? `below ${rows.cut}` : "exactly 0");

  // What is not stored of a sentence; null if all is.
  function dropped(sentence) {
    const cuts = Object.values(sentence.heads || {})
      .map((head) => head.cut || 0)
      .filter((cut) => cut > 0);
    const omitted = (sentence.omitted || []).length;
    if (!cuts.length && !omitted) return null;
    const heads = (count) => (count === 1 ? "1 head" : `${count} heads`);
    const parts = [];
    if (cuts.length) parts.push(`of ${heads(cuts.length)} only the largest weights, down to ${Math.max(...cuts)} or lower`);
    if (omitted) parts.push(`of ${heads(omitted)} nothing`);
    return `To keep this page small, it stores for this sentence ${parts.join(", and ")}. Measures use all weights.`;
  }

  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  function median(values) {
    if (!values.length) return null;
    const sorted = [...values].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

  return {
    ATTENTION_TYPES,
    ATTENTION_TITLES,
    keyOf,
    parseKey,
    titleOf,
    attnTypes,
    allAttnTypes,
    headsOf,
    findHead,
    alphaOf,
    tokensOf,
    storedRows,
    visible,
    hasScores,
    recomputedRows,
    support,
    density,
    shown,
    noun,
    sizes,
    restText,
    dropped,
    mean,
    median,
  };
})();
