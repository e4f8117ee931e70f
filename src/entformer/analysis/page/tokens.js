// One query and its support in words and numbers. Two lines of tokens (queries, keys) and the list of weights, largest first;
// every key that is not in the list has weight exactly 0, or less than the cut of a dense head, and the page says which.

const Tokens = (() => {
  "use strict";

  const { el } = Dom;
  const LISTED = 12; // more on request: the long tail of a dense head says little

  function chip(piece, index, properties) {
    const { text, special, starts } = Data.shown(piece);
    const classes = ["token", special ? "special" : "", starts ? "" : "joined"].join(" ").trim();
    return el(properties.tag, { ...properties, tag: null, class: classes, "data-index": index }, text);
  }

  // A line of a list of weights or probabilities: style of its bar, attributes of the line.
  const line = (piece, position, value, style, properties) =>
    el(
      "li",
      properties,
      el("span.key", Data.shown(piece).text),
      el("span.position", position),
      el("span.bar", el("i", { style })),
      el("span.value", Numbers.weight(value)),
    );

  // onQuery(row) when a query is hovered, focused or tapped; titles: what queries and keys are called.
  function create({ onQuery, titles = { queries: "Query", keys: "Keys" } }) {
    const queryLine = el("div", { class: "tokens queries", dir: "auto", role: "group", "aria-label": `${titles.queries}: choose a token` });
    const keyLine = el("div", { class: "tokens keys", dir: "auto", role: "group", "aria-label": titles.keys });
    const says = el("p", { class: "says", "aria-live": "polite" });
    const list = el("ol", { class: "support", "aria-label": "Keys with weight, largest first" });
    const more = el("button", { type: "button", class: "quiet more", onclick: () => expand() }, "");
    const rest = el("p.rest");
    const element = el(
      "div.reading",
      el("h4", titles.queries, el("small", "hover, tap or use the arrow keys")),
      queryLine,
      el("h4", titles.keys, el("small", "colored by weight, hatched where exactly 0")),
      keyLine,
      says,
      list,
      more,
      rest,
    );
    let content = null;
    let row = 0;
    let all = false;
    let looks = []; // how each key looks now

    Dom.onChoice(queryLine, ".token", (index) => index !== row && onQuery(index));

    const equal = (some, others) => some === others || (some.length === others.length && some.every((piece, i) => piece === others[i]));

    function show(next) {
      const same = content && equal(content.queries, next.queries) && equal(content.keys, next.keys);
      content = next;
      if (same) return;
      looks = [];
      queryLine.replaceChildren(
        ...next.queries.map((piece, index) => chip(piece, index, { tag: "button", type: "button", tabindex: -1, "aria-pressed": false })),
      );
      keyLine.replaceChildren(...next.keys.map((piece, index) => chip(piece, index, { tag: "span" })));
    }

    function expand() {
      all = true;
      mark(row);
    }

    function mark(next) {
      if (next !== row) all = false;
      row = next;
      const { rows, queries, keys, predicted } = content;
      chooseQuery();
      const found = Data.support(rows, row);
      const seen = Data.visible(rows, row);
      colorKeys(new Map(found.map(({ column, weight }) => [column, weight])), seen);
      Dom.keepInView(queryLine, queryLine.children[row]);
      Dom.keepInView(keyLine, found.length ? keyLine.children[found[0].column] : null);
      describe(found, seen, Data.shown(queries[row]).text, predicted ? Data.shown(predicted[row]).text : null);
      const shown = all ? found : found.slice(0, LISTED);
      const top = found.length ? found[0].weight : 1;
      list.replaceChildren(
        ...shown.map(({ column, weight }) => {
          const style = { width: `${(100 * weight) / Math.max(top, 1e-9)}%`, background: Colors.weight(weight) };
          return line(keys[column], `at ${column}`, weight, style, { "data-column": column });
        }),
      );
      more.hidden = shown.length === found.length;
      more.textContent = `Show all ${found.length} keys with weight`;
    }

    function chooseQuery() {
      const before = queryLine.querySelector(".chosen");
      for (const [button, chosen] of [[before, false], [queryLine.children[row], true]]) {
        if (!button) continue;
        button.classList.toggle("chosen", chosen);
        button.setAttribute("aria-pressed", chosen);
        button.tabIndex = chosen ? 0 : -1;
      }
    }

    // Only keys that look different from before are touched: of thousands, a few.
    function colorKeys(weights, seen) {
      const rest = Data.restText(content.rows);
      const theme = Colors.theme();
      [...keyLine.children].forEach((node, column) => {
        const weight = weights.get(column);
        const look = column >= seen ? "hidden" : weight ? `${weight} ${theme}` : rest;
        if (looks[column] === look) return;
        looks[column] = look;
        const rgb = weight ? Colors.weightRgb(weight) : null;
        node.classList.toggle("zero", !weight && !content.rows.cut && column < seen);
        node.classList.toggle("hidden-key", column >= seen);
        node.style.background = rgb ? `rgb(${rgb.join(",")})` : "";
        node.style.color = rgb ? Colors.ink(rgb) : "";
        node.title = column >= seen ? "not visible: in the future" : weight ? Numbers.weight(weight) : rest;
      });
    }

    function describe(found, seen, query, next) {
      const { cut } = content.rows;
      const zeros = seen - found.length;
      const puts = cut ? `puts ${cut} or more on` : "puts weight on";
      says.replaceChildren(
        "The query ",
        el("b", query),
        ...(next === null ? [] : [" (to predict ", el("b", next), ")"]),
        found.length
          ? ` ${puts} ${found.length} of ${seen} ${seen === 1 ? "key" : "keys"}.`
          : ` ${puts} no key at all.`,
      );
      rest.hidden = zeros === 0;
      rest.style.backgroundImage = cut ? "none" : ""; // hatching means exactly 0
      const others = zeros === 1 ? "The other visible key gets" : `The other ${zeros} visible keys get`;
      rest.textContent = cut ? `${others} less than ${cut} each; what exactly is not in this page.` : `${others} exactly 0.`;
    }

    return { element, show, mark };
  }

  return { create, line };
})();
