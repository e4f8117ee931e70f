// The weights of one head as lines between two columns of tokens: keys on the left, queries on the right. A line is drawn only
// where the weight is above zero. Of a long or dense sentence only the lines of the chosen query are drawn; all would be a gray
// mass.

const Lines = (() => {
  "use strict";

  const { el, svg } = Dom;
  const STEP = 24;
  const HEADING = 30;
  const MOST_LINES = 1500;

  function create({ onQuery }) {
    const element = el("div.lines");
    let content = null;
    let picture = null;
    let row = 0;
    let drawnAt = 0;
    let strong = []; // the tokens of the chosen query
    new ResizeObserver(() => {
      if (content && element.clientWidth && element.clientWidth !== drawnAt) show(content);
    }).observe(element);

    // The tokens stay where another head has the same: of thousands, they are most of the work.
    function show(next) {
      const same = picture && content.queries === next.queries && content.keys === next.keys;
      content = next;
      if (same && drawnAt === element.clientWidth) {
        picture.drawing.setAttribute("aria-label", nameOf(next));
        drawBackground();
        mark(row);
        return;
      }
      const { rows, queries, keys } = next;
      const width = Math.min(Math.max(element.clientWidth, 300), 600);
      const [from, to] = [width * 0.34, width * 0.66];
      const height = Math.max(rows.rows, rows.columns) * STEP + HEADING + 6;
      const middle = (index, count) => (index + 0.5) * STEP + HEADING + (height - HEADING - 6 - count * STEP) / 2;
      const heading = (text, x, anchor) => svg("text", { x, y: 10, "text-anchor": anchor, class: "heading" }, text);
      const background = svg("g.all");
      const word = (piece, index, count, x, anchor, extra) => {
        const { text, special } = Data.shown(piece);
        return svg(
          "text",
          { x, y: middle(index, count), "text-anchor": anchor, class: special ? "special" : "", ...extra },
          text,
        );
      };
      const keyWords = keys.slice(0, rows.columns).map((piece, index) => word(piece, index, rows.columns, from - 8, "end", {}));
      const queryWords = queries.slice(0, rows.rows).map((piece, index) =>
        word(piece, index, rows.rows, to + 8, "start", {
          "data-index": index,
          tabindex: -1,
          role: "button",
          "aria-label": `query ${Data.shown(piece).text}`,
        }),
      );
      picture = { keyWords, queryWords, from, to, middle, chosen: svg("g"), background };
      strong = [];
      drawBackground();
      picture.drawing = svg(
        "svg",
        { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": nameOf(next) },
        heading(next.keyTitle, from - 8, "end"),
        heading(next.queryTitle, to + 8, "start"),
        background,
        picture.chosen,
        svg("g.keys", keyWords),
        svg("g.queries", queryWords),
      );
      element.replaceChildren(picture.drawing);
      drawnAt = element.clientWidth;
      Dom.onChoice(picture.drawing.querySelector(".queries"), "text", (index) => index !== row && onQuery(index));
      mark(row);
    }

    const nameOf = ({ title }) => `${title}: lines from queries to their keys`;

    function drawBackground() {
      const { rows } = content;
      const { from, to, middle } = picture;
      const links = [];
      for (let query = 0; rows.col.length <= MOST_LINES && query < rows.rows; query++) {
        for (const { column, weight } of Data.support(rows, query))
          links.push(link(from, middle(column, rows.columns), to, middle(query, rows.rows), weight));
      }
      picture.background.replaceChildren(...links);
    }

    function link(x1, y1, x2, y2, weight) {
      const bend = (x2 - x1) * 0.42;
      return svg("path", {
        d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
        "stroke-width": (0.8 + 4.2 * Math.min(weight, 1)).toFixed(2),
        stroke: Colors.weight(weight),
        fill: "none",
      });
    }

    function mark(next) {
      row = next;
      if (!picture || row >= content.rows.rows) return;
      const { rows } = content;
      const found = Data.support(rows, row);
      const y = picture.middle(row, rows.rows);
      picture.background.classList.add("dim");
      picture.chosen.replaceChildren(
        ...found.map(({ column, weight }) => link(picture.from, picture.middle(column, rows.columns), picture.to, y, weight)),
        ...found
          .slice(0, 4)
          .map(({ column, weight }) =>
            svg(
              "text",
              { x: picture.from - 2, y: picture.middle(column, rows.columns) - 9, class: "number", "text-anchor": "start" },
              Numbers.fixed(weight, 2, [0, 1]),
            ),
          ),
      );
      for (const word of strong) word.classList.remove("strong");
      picture.drawing.querySelector('.queries [tabindex="0"]')?.setAttribute("tabindex", -1);
      picture.queryWords[row].setAttribute("tabindex", 0);
      strong = [picture.queryWords[row], ...found.map(({ column }) => picture.keyWords[column])];
      for (const word of strong) word.classList.add("strong");
    }

    return { element, show, mark };
  }

  return { create };
})();
