// What changed between two translations, word by word: the longest common subsequence stays, the rest went or came.

const Words = (() => {
  "use strict";

  const split = (text) => text.split(/\s+/).filter(Boolean);

  // [{word, status}]: status is "same", "gone" (in `before` only) or "new" (in `after` only).
  function difference(before, after) {
    const [a, b] = [split(before), split(after)];
    const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i--)
      for (let j = b.length - 1; j >= 0; j--)
        best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    const found = [];
    let [i, j] = [0, 0];
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) {
        found.push({ word: a[i], status: "same" });
        i++;
        j++;
        continue;
      }
      const gone = i < a.length && (j === b.length || best[i + 1][j] >= best[i][j + 1]);
      found.push(gone ? { word: a[i++], status: "gone" } : { word: b[j++], status: "new" });
    }
    return found;
  }

  // Words of the later text; new ones are marked, and what went is struck out for those who want to see it.
  function marked(before, after, { gone }) {
    const nodes = [];
    for (const { word, status } of difference(before, after)) {
      if (status === "gone" && !gone) continue;
      if (nodes.length) nodes.push(" ");
      nodes.push(status === "same" ? word : Dom.el(status === "new" ? "ins" : "del", {}, word));
    }
    return nodes;
  }

  return { marked };
})();
