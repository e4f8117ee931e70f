// What the heads of a layer do together: a table of one run, and charts of all runs by layer.

const Layers = (() => {
  "use strict";

  const { el, svg } = Dom;

  // The two diversities are one quantity as a share of two maxima.
  const BASES = [
    ["js_diversity_keys", "logarithms to the base of the number of keys, as in the paper"],
    ["js_diversity_heads", "logarithms to the base of the number of heads"],
  ];

  const COLUMNS = [
    ["density", "Density", "mean share of the visible keys that get weight, over all heads", Numbers.percent],
    ["union_density", "Union", "share of the visible keys that at least one head gives weight to", Numbers.percent],
    ["null_rate", "Null rate", "share of rows without any weight", Numbers.percent],
    ["js_diversity_keys", "JS, base: keys", `Jensen-Shannon divergence, ${BASES[0][1]}`, (value) => Numbers.fixed(value, 3)],
    ["js_diversity_heads", "JS, base: heads", `Jensen-Shannon divergence, ${BASES[1][1]}`, (value) => Numbers.fixed(value, 3)],
  ];

  const ordered = (run) =>
    [...(run.layers || [])].sort((a, b) => Data.KINDS.indexOf(a.kind) - Data.KINDS.indexOf(b.kind) || a.layer - b.layer);

  // null if the run says nothing about layers.
  function table(run) {
    const layers = ordered(run);
    if (!layers.length) return null;
    const columns = COLUMNS.filter(([name]) => layers.some((layer) => !Numbers.missing(layer[name])));
    return el(
      "div",
      { class: "layer-table" },
      el("h3", {}, "Layers"),
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of layers" },
        el(
          "table",
          {},
          el("caption", { class: "unseen" }, "All layers with their measures"),
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", { scope: "col" }, "Layer"),
              columns.map(([, text, title]) => el("th", { scope: "col", title }, text)),
            ),
          ),
          el(
            "tbody",
            {},
            layers.map((layer) =>
              el(
                "tr",
                { "data-layer": `${layer.kind}.${layer.layer}` },
                el("th", { scope: "row" }, `${layer.kind}.${layer.layer}`),
                columns.map(([name, , , form]) => el("td", { "data-measure": name }, form(layer[name]))),
              ),
            ),
          ),
        ),
      ),
    );
  }

  // A line per run over the layers of one kind; null if no run has the measure.
  function byLayer(runs, kind, name, { first, last, top, yForm, form, says }) {
    const chart = Charts.frame({
      width: 400,
      height: 220,
      x: [first - 0.3, last + 0.3],
      y: [0, top],
      xTicks: Array.from({ length: last - first + 1 }, (_, index) => first + index),
      yForm,
      xTitle: "layer",
      says: `${Data.KIND_TITLES[kind]}: ${says}, per run`,
    });
    runs.forEach((run, index) => {
      const points = ordered(run)
        .filter((layer) => layer.kind === kind && !Numbers.missing(layer[name]))
        .map((layer) => ({
          x: chart.x(layer.layer),
          y: chart.y(layer[name]),
          text: `${run.name}, layer ${layer.layer}: ${form(layer[name])}`,
        }));
      chart.plot.append(
        svg("path", {
          d: Charts.path(points.map(({ x, y }) => [x, y])),
          class: "line",
          stroke: Colors.run(index),
          "stroke-dasharray": Colors.dash(index),
        }),
        ...points.map(({ x, y, text }) => svg("g", {}, Charts.shape(index, x, y, Colors.run(index)), svg("title", {}, text))),
      );
    });
    return el("div", {}, el("h4", {}, Data.KIND_TITLES[kind]), chart.picture);
  }

  const values = (runs, name) =>
    runs.flatMap((run) => (run.layers || []).map((layer) => layer[name])).filter((value) => !Numbers.missing(value));

  function range(runs) {
    const layers = runs.flatMap((run) => (run.layers || []).map((layer) => layer.layer));
    return { first: Math.min(...layers), last: Math.max(...layers) };
  }

  const kindsOf = (runs) => Data.KINDS.filter((kind) => runs.some((run) => Data.kindsOf(run).includes(kind)));

  function diversity(runs) {
    const known = BASES.filter(([name]) => values(runs, name).length);
    if (!known.length) return null;
    return Charts.figure(
      "How different the heads of a layer are",
      "Jensen-Shannon divergence between the heads of each layer. Higher: the heads look at different things.",
      Charts.runLegend(runs),
      known.map(([name, base]) => [
        el("p", { class: "note base" }, `${base.charAt(0).toUpperCase()}${base.slice(1)}`),
        el(
          "div",
          { class: "chart-row", "data-measure": name },
          kindsOf(runs).map((kind) =>
            byLayer(runs, kind, name, {
              ...range(runs),
              top: Math.max(...values(runs, name), 1e-6) * 1.08,
              yForm: (value) => Numbers.fixed(value),
              form: (value) => Numbers.fixed(value, 3),
              says: `Jensen-Shannon divergence between the heads of each layer, ${base}`,
            }),
          ),
        ),
      ]),
    );
  }

  // Rows without weight; null where no run has any, as everywhere but with ReLA.
  function nullRates(runs) {
    const top = Math.max(0, ...values(runs, "null_rate"));
    if (!top) return null;
    return Charts.figure(
      "Rows without weight",
      "The null rate of each layer: the share of rows (a query of a head) that give no key any weight, as ReLA allows.",
      Charts.runLegend(runs),
      el(
        "div",
        { class: "chart-row", "data-measure": "null_rate" },
        kindsOf(runs).map((kind) =>
          byLayer(runs, kind, "null_rate", {
            ...range(runs),
            top: top * 1.08,
            yForm: Numbers.percent,
            form: Numbers.percent,
            says: "share of rows without weight by layer",
          }),
        ),
      ),
    );
  }

  return { table, diversity, nullRates };
})();
