// Text to subwords and back, as text/tokenizer.py with sentencepiece: byte-pair encoding without normalization. Runs of spaces
// are one space, and characters that are not in the vocabulary are spelled as bytes.

const LiveTokenizer = (() => {
  "use strict";

  const SPACE = "▁";
  const BYTE = 6; // the type of a piece "<0xE2>"
  const LINE_ENDS = /[\n\v\f\x1c\x1d\x1e\x85\u2028\u2029\r]/g;
  const lone = (character) => character.length === 1 && character >= "\ud800" && character <= "\udfff";

  const oneLine = (text) => text.replace(LINE_ENDS, " ");

  // Bytes as UTF-8; each byte that is not part of a character becomes U+FFFD.
  function fromBytes(bytes) {
    const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    let text = "";
    for (let at = 0; at < bytes.length; ) {
      let size = 1;
      let character = null;
      for (; size <= 4 && at + size <= bytes.length && character === null; size++) {
        try {
          character = strict.decode(Uint8Array.from(bytes.slice(at, at + size)));
        } catch {
          // Not a whole character yet.
        }
      }
      text += character ?? "\ufffd";
      at += character === null ? 1 : size - 1;
    }
    return text;
  }

  // The fields of a protocol buffer, in order, as [number, value]; a value is a number or bytes.
  function* fields(message) {
    const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
    let at = 0;
    const varint = () => {
      let value = 0;
      for (let factor = 1; ; factor *= 128) {
        const byte = message[at++];
        value += (byte & 127) * factor;
        if (byte < 128) return value;
      }
    };
    while (at < message.length) {
      const key = varint();
      const [number, kind] = [Math.floor(key / 8), key % 8];
      if (kind === 0) yield [number, varint()];
      else if (kind === 5) {
        yield [number, view.getFloat32(at, true)];
        at += 4;
      } else {
        const size = kind === 1 ? 8 : varint();
        yield [number, message.subarray(at, at + size)];
        at += size;
      }
    }
  }

  // {model: base64 of a sentencepiece model, lowercase}
  function create({ model, lowercase }) {
    const vocabulary = []; // {1: the piece, 2: its score, 3: its type}
    for (const [number, value] of fields(Uint8Array.from(atob(model), (letter) => letter.charCodeAt(0))))
      if (number === 1) vocabulary.push(Object.fromEntries(fields(value)));
    const text = new TextDecoder();
    const pieces = vocabulary.map((one) => text.decode(one[1]));
    const scores = vocabulary.map((one) => one[2] ?? 0);
    const normal = vocabulary.map((one) => (one[3] ?? 1) === 1);
    const idOf = new Map(pieces.map((piece, id) => [piece, id]).filter(([, id]) => normal[id]));
    const byteOf = new Map(pieces.flatMap((piece, id) => (vocabulary[id][3] === BYTE ? [[id, parseInt(piece.slice(3, 5), 16)]] : [])));
    const bytes = new Map([...byteOf].map(([id, byte]) => [byte, id]));

    // Merges the pair with the highest score, the leftmost among equals, until no pair is a piece.
    function merge(symbols) {
      for (;;) {
        let chosen = -1;
        let highest = -Infinity;
        for (let i = 0; i + 1 < symbols.length; i++) {
          const id = symbols[i] === null || symbols[i + 1] === null ? undefined : idOf.get(symbols[i] + symbols[i + 1]);
          if (id !== undefined && scores[id] > highest) [chosen, highest] = [i, scores[id]];
        }
        if (chosen < 0) return symbols;
        symbols.splice(chosen, 2, symbols[chosen] + symbols[chosen + 1]);
      }
    }

    const spelled = (text) => Array.from(new TextEncoder().encode(text), (byte) => bytes.get(byte));

    // No piece continues behind a space, so words are merged one by one. "▁" in the text itself (null) is spelled as bytes.
    function encodeWord(word) {
      const symbols = Array.from(word, (character) =>
        character === SPACE ? null : lone(character) ? "\ufffd" : character,
      );
      return merge([SPACE, ...symbols]).flatMap((symbol) => (symbol === null ? spelled(SPACE) : (idOf.get(symbol) ?? spelled(symbol))));
    }

    function encode(text) {
      const line = oneLine(text).replaceAll("\0", " ");
      return (lowercase ? line.toLowerCase() : line).split(/ +/).filter(Boolean).flatMap(encodeWord);
    }

    function decode(ids) {
      let text = "";
      let waiting = []; // bytes
      for (const id of [...ids, null]) {
        if (byteOf.has(id)) {
          waiting.push(byteOf.get(id));
          continue;
        }
        text += fromBytes(waiting);
        waiting = [];
        if (id === null || !normal[id]) continue;
        const piece = text === "" && pieces[id].startsWith(SPACE) ? pieces[id].slice(SPACE.length) : pieces[id];
        text += piece.replaceAll(SPACE, " ");
      }
      return oneLine(text);
    }

    return { encode, decode, pieces: (ids) => ids.map((id) => pieces[id]) };
  }

  return { create, oneLine };
})();
