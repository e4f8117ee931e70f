// What the heads of a layer do together: a table of one run, and charts of all runs by layer.

const Layers = (() => {
  "use strict";

  const { el, svg } = Dom;

  const ordered = (run) => {
    const index = (layer) => Data.ATTENTION_TYPES.indexOf(layer.attn_type);
    return [...run.layers].sort((a, b) => index(a) - index(b) || a.layer - b.layer);
  };

  // null for a run without measures of layers.
  function table(run) {
    const layers = ordered(run);
    if (!layers.length) return null;
    const columns = run.measures.layers.filter(({ name }) => layers.some((layer) => !Numbers.missing(layer[name])));
    const rows = layers.map((layer) => ({
      "data-layer": `${layer.attn_type}.${layer.layer}`,
      cells: [
        `${layer.attn_type}.${layer.layer}`,
        ...columns.map((measure) =>
          el("td", { "data-measure": measure.name }, Numbers.measure(measure, layer[measure.name])),
        ),
      ],
    }));
    const titles = ["Layer", ...columns.map(({ title, text }) => el("th", { scope: "col", title: text }, title))];
    return el(
      "div.layer-table",
      el("h3", "Layers"),
      Dom.scroll("Table of layers", Dom.table({ caption: "All layers with their measures", titles, rows })),
    );
  }

  const values = (runs, name) =>
    runs.flatMap((run) => run.layers.map((layer) => layer[name])).filter((value) => !Numbers.missing(value));

  function chart(runs, attnType, measure, top) {
    const layers = runs.flatMap((run) => run.layers.map((layer) => layer.layer));
    const [first, last] = [Math.min(...layers), Math.max(...layers)];
    const frame = Charts.frame({
      width: 400,
      height: 220,
      x: [first - 0.3, last + 0.3],
      y: [0, top],
      xTicks: Charts.integers(first, last),
      yForm: (value) => Numbers.measure({ ...measure, digits: 2 }, value),
      xTitle: "layer",
      label: `${Data.ATTENTION_TITLES[attnType]}: ${measure.label} by layer, per run`,
    });
    runs.forEach((run, index) => {
      const points = ordered(run)
        .filter((layer) => layer.attn_type === attnType && !Numbers.missing(layer[measure.name]))
        .map((layer) => [frame.x(layer.layer), frame.y(layer[measure.name]), layer]);
      const color = Colors.run(index);
      frame.plot.append(
        svg("path", { d: Charts.path(points), class: "line", stroke: color, "stroke-dasharray": Colors.dash(index) }),
        ...points.map(([x, y, layer]) => {
          const text = `${run.name}, layer ${layer.layer}: ${Numbers.measure(measure, layer[measure.name])}`;
          return svg("g", Charts.shape(index, x, y, color), svg("title", text));
        }),
      );
    });
    return el("div", el("h4", Data.ATTENTION_TITLES[attnType]), frame.svg);
  }

  // A figure of measures: a row of charts each. null where no run has a value, or all are 0.
  function figure(runs, prefix, title, text) {
    const known = runs[0].measures.layers.filter(({ name }) => name.startsWith(prefix) && Math.max(0, ...values(runs, name)));
    if (!known.length) return null;
    const rows = known.map((measure) => {
      const top = Math.max(...values(runs, measure.name)) * 1.08;
      const charts = Data.allAttnTypes(runs).map((attnType) => chart(runs, attnType, measure, top));
      return [
        known.length > 1 && el("p.note.base", measure.label),
        el("div", { class: "chart-row", "data-measure": measure.name }, charts),
      ];
    });
    return Charts.figure(title, text, Charts.runLegend(runs), rows);
  }

  const diversity = (runs) =>
    figure(
      runs,
      "js_diversity",
      "How different the heads of a layer are",
      "Jensen-Shannon divergence between the heads of each layer. Higher: the heads attend to different keys.",
    );

  const nullRates = (runs) =>
    figure(
      runs,
      "null_rate",
      "Null rate",
      "Queries whose weights are all 0, as ReLA allows, over all queries and heads of a layer.",
    );

  return { table, diversity, nullRates };
})();
