// All runs side by side, in the layout of Figures 3 to 7 of the paper: a column per run, a row per attention type.

const Compare = (() => {
  "use strict";

  const { el, svg } = Dom;
  const BINS = 20;
  const PREVIOUS = "positional.-1";
  const OFFSETS = [
    [PREVIOUS, -1, "the previous token"],
    ["positional.0", 0, "the token itself"],
    ["positional.1", 1, "the next token"],
  ];

  const summed = (heads) =>
    heads.reduce((sum, head) => head.density_histogram.map((count, bin) => count + (sum[bin] || 0)), []);

  // The highest bar of all histograms, for a common scale; a histogram of a single bar (softmax) would flatten the others and
  // is skipped.
  function tallest(all) {
    const heights = all
      .filter((counts) => counts.length)
      .map((counts) => Math.max(...counts) / (counts.reduce((a, b) => a + b, 0) || 1));
    const spread = heights.filter((height) => height < 0.9);
    return spread.length ? Math.max(0.05, ...spread) : 1;
  }

  // A table of charts: attention types down, runs across. draw(run, heads, attnType, index) gives a chart or null.
  function matrix(runs, draw) {
    const attnTypes = Data.allAttnTypes(runs);
    if (runs.length === 1) {
      return el(
        "div.chart-row",
        attnTypes.map((attnType) =>
          el("div", el("h4", Data.ATTENTION_TITLES[attnType]), draw(runs[0], Data.headsOf(runs[0], attnType), attnType, 0)),
        ),
      );
    }
    return el(
      "div",
      { class: "matrix", style: { "--runs": runs.length } },
      attnTypes.map((attnType) => [
        el("h4.type-name", Data.ATTENTION_TITLES[attnType]),
        runs.map((run, index) =>
          el(
            "div.one",
            el("p", { class: "run-name", style: { color: Colors.run(index) } }, run.name),
            draw(run, Data.headsOf(run, attnType), attnType, index) || el("p.note", "–"),
          ),
        ),
      ]),
    );
  }

  // A histogram for each attention type and shown run, on one scale; the mean of the values is marked.
  function histograms(runs, shown, { values, counts, label, ...options }) {
    const all = shown.flatMap((run) => Data.allAttnTypes(runs).map((attnType) => counts(Data.headsOf(run, attnType))));
    const top = Math.min(1, tallest(all));
    return matrix(shown, (run, heads, attnType) => {
      const mark = Data.mean(values(heads));
      if (mark === null) return null;
      const text = `${run.name}, ${Data.ATTENTION_TITLES[attnType]}: ${label(heads)} ${options.markForm(mark)}`;
      return Charts.histogram(counts(heads), { ...options, top, mark, color: Colors.run(runs.indexOf(run)), label: text });
    });
  }

  // A fixed alpha is the same in all heads; a learned one has a path or differs between heads.
  const learnsAlpha = (run) => {
    const own = new Set(run.heads.map((head) => head.alpha).filter((alpha) => !Numbers.missing(alpha)));
    return own.size > 1 || (own.size === 1 && Boolean(run.alpha_paths));
  };

  function fromStart(run) {
    const correlation = (run.alpha_correlation || {}).all;
    return Numbers.missing(correlation)
      ? ""
      : ` In ${run.name} final α correlates ${Numbers.fixed(correlation, 2, [0, 1])} with its random initial value.`;
  }

  function alphas(runs) {
    const learning = runs.filter(learnsAlpha);
    if (!learning.length) return null;
    const values = (heads) => heads.map((head) => head.alpha).filter((alpha) => !Numbers.missing(alpha));
    const x = [1, Math.max(2, ...learning.flatMap((run) => values(run.heads)))];
    const only = runs.length > 1 && learning.length === 1 ? ` Only ${learning[0].name} learns it.` : "";
    return Charts.figure(
      "Learned α",
      `The fraction of heads at each α: 1 is softmax, 2 is sparsemax.${only}${learning.map(fromStart).join("")}`,
      histograms(runs, learning, {
        values,
        counts: (heads) => Charts.counts(values(heads), x, BINS),
        label: (heads) => `${values(heads).length} heads, mean alpha`,
        x,
        xForm: (value) => value.toFixed(1),
        markForm: Numbers.alpha,
      }),
    );
  }

  function densities(runs) {
    return Charts.figure(
      "How dense attention is",
      "The fraction of heads and sentences at each density: visible keys with nonzero weight, averaged over the queries of the " +
        "sentence. Softmax is one bar at 100%.",
      histograms(runs, runs, {
        values: (heads) => heads.map((head) => head.density),
        counts: summed,
        label: () => "mean density",
        x: [0, 1],
        xForm: Charts.percent,
        markForm: Numbers.percent,
      }),
    );
  }

  function layerDensities(runs) {
    const all = runs.flatMap((run) => run.heads.map((head) => head.layer));
    const [first, last] = [Math.min(...all), Math.max(...all)];
    return Charts.figure(
      "Density by layer",
      "A dot is a head, the line their mean. Dashed: keys to which at least one head of the layer attends.",
      matrix(runs, (run, heads, attnType, index) => {
        if (!heads.length) return null;
        const chart = Charts.frame({
          height: 180,
          x: [first - 0.4, last + 0.4],
          y: [0, 1],
          xTicks: Charts.integers(first, last),
          yForm: Charts.percent,
          xTitle: "layer",
          label: `${run.name}, ${Data.ATTENTION_TITLES[attnType]}: density of each head by layer`,
        });
        const layers = run.layers.filter((layer) => layer.attn_type === attnType).sort((a, b) => a.layer - b.layer);
        const line = (name) =>
          Charts.path(
            layers.filter((layer) => !Numbers.missing(layer[name])).map((layer) => [chart.x(layer.layer), chart.y(layer[name])]),
          );
        const color = Colors.run(index);
        chart.plot.append(
          svg("path", { d: line("union_density"), class: "line", stroke: color, "stroke-dasharray": "3 4" }),
          svg("path", { d: line("density"), class: "line", stroke: color }),
          ...heads.map((head) =>
            svg(
              "circle",
              { class: "dot", cx: chart.x(head.layer), cy: chart.y(head.density), r: 4, fill: color },
              svg("title", `${Data.keyOf(head)}: ${Numbers.percent(head.density)}`),
            ),
          ),
        );
        return chart.svg;
      }),
    );
  }

  // A line per head over the number of keys that a query sees, in powers of two; both axes are logarithmic.
  function keyDensities(runs) {
    const points = (head) =>
      (head.density_by_keys || [])
        .map((density, bin) => [bin + 0.5, density])
        .filter(([, density]) => !Numbers.missing(density) && density > 0);
    const all = runs.flatMap((run) => run.heads.flatMap(points));
    const last = Math.max(0, ...all.map(([bin]) => bin + 0.5));
    if (last < 4) return null;
    const lowest = Math.floor(Math.log10(Math.min(0.1, ...all.map(([, density]) => density))));
    return Charts.figure(
      "Density against position",
      "The density of each head over the keys that a query may attend to: in a decoder, the tokens up to its own. A line is a " +
        "head, colored by its α. Both axes are logarithmic: a head with a fixed number of keys falls along a straight line.",
      matrix(runs, (run, heads, attnType, index) => {
        if (!heads.some((head) => points(head).length)) return null;
        const chart = Charts.frame({
          height: 220,
          x: [0, last],
          y: [lowest, 0],
          xTicks: Charts.integers(0, last).filter((bin) => bin % Math.ceil(last / 8) === 0),
          xForm: (bin) => Numbers.count(2 ** bin),
          yTicks: Charts.integers(lowest, 0),
          yForm: (power) => `${Number((100 * 10 ** power).toPrecision(1))}%`,
          xTitle: "keys that the query may attend to",
          margin: { left: 46 },
          label: `${run.name}, ${Data.ATTENTION_TITLES[attnType]}: density of each head by the number of visible keys`,
        });
        chart.plot.append(
          ...heads.map((head) => {
            const alpha = Data.alphaOf(run, head);
            const stroke = alpha === null ? Colors.run(index) : `rgb(${Colors.alphaRgb(alpha).join(",")})`;
            const way = points(head).map(([bin, density]) => [chart.x(bin), chart.y(Math.log10(density))]);
            const title = `${Data.keyOf(head)}: α ${Numbers.alpha(alpha)}, density ${Numbers.percent(head.density)}`;
            return svg("path", { class: "line", "data-key": Data.keyOf(head), stroke, d: Charts.path(way) }, svg("title", title));
          }),
        );
        return chart.svg;
      }),
    );
  }

  // "4 heads, median confidence 96%", as in the paper.
  function counted(run, offset, color) {
    const found = run.positional_heads.find((one) => one.offset === offset);
    if (!found) return null;
    const count = found.heads.length;
    const heads = count === 1 ? "1 head" : `${count} heads`;
    return el(
      "p",
      { class: "note counted", title: found.heads.join(", ") },
      color && el("b", { style: { color } }, `${run.name}: `),
      count ? `${heads}, median confidence ${Numbers.percent(found.median_confidence)}` : heads,
    );
  }

  function positional(runs, onOpen) {
    const panels = OFFSETS.map(([offset, number, name]) => {
      const height = 34 * runs.length + 56;
      const chart = Charts.frame({
        width: 400,
        height,
        margin: { left: 14, right: 20, top: 22 },
        x: [0, 1],
        y: [runs.length - 0.5, -0.5],
        yTicks: [],
        xForm: Charts.percent,
        xTitle: "median confidence",
        label: `Confidence of every self-attention head on ${name}, per run`,
      });
      runs.forEach((run, index) => {
        const heads = run.heads.filter((head) => head.attn_type !== "cross" && !Numbers.missing(head[offset]));
        const best = heads.reduce((top, head) => (top && top[offset] >= head[offset] ? top : head), null);
        chart.plot.append(
          svg("line", { class: "rule", x1: chart.x(0), x2: chart.x(1), y1: chart.y(index), y2: chart.y(index) }),
        );
        for (const head of heads) {
          const open = { class: head === best ? "dot best" : "dot", onclick: () => onOpen(index, Data.keyOf(head)) };
          const title = `${run.name} ${Data.keyOf(head)}: ${Numbers.percent(head[offset])}`;
          chart.plot.append(Charts.shape(index, chart.x(head[offset]), chart.y(index), Colors.run(index), open, title));
        }
        if (best) {
          const near = best[offset] > 0.5;
          chart.plot.append(
            svg(
              "text",
              {
                class: "tick strong",
                x: chart.x(best[offset]) + (near ? 4 : -4),
                y: chart.y(index) - 9,
                "text-anchor": near ? "end" : "start",
              },
              `${Data.keyOf(best)}  ${Numbers.percent(best[offset])}`,
            ),
          );
        }
      });
      return el(
        "div",
        el("h4", `On ${name}`),
        chart.svg,
        runs.map((run, index) => counted(run, number, runs.length > 1 && Colors.run(index))),
      );
    });
    return Charts.figure(
      "Positional heads",
      "Each mark is a self-attention head: the median weight it puts on a fixed offset. " +
        "The head with the highest confidence of each run is named. Heads of 40% or more are counted.",
      Charts.runLegend(runs),
      el("div.chart-row", panels),
    );
  }

  // The previous-token head with the highest confidence in each run, on one sentence.
  function bestPrevious(runs, sentenceId, onOpen) {
    const found = runs
      .map((run, index) => {
        const sentence = run.sentences.find((one) => one.id === sentenceId);
        const heads = run.heads.filter((head) => head.attn_type === "encoder" && !Numbers.missing(head[PREVIOUS]));
        const head = heads.sort((a, b) => b[PREVIOUS] - a[PREVIOUS])[0];
        const rows = sentence && head && Data.storedRows(sentence, Data.keyOf(head));
        return rows && { run, index, head, rows };
      })
      .filter(Boolean);
    if (!found.length) return null;
    return Charts.figure(
      "The best previous-token head",
      "In the encoder of each run, on the sentence chosen above. Gray is exactly 0.",
      el(
        "div.best-heads",
        found.map(({ run, index, head, rows }) =>
          Heads.card(
            rows,
            () => onOpen(index, Data.keyOf(head)),
            el("span", { class: "run-name", style: { color: Colors.run(index) } }, run.name),
            el(
              "span.facts",
              Heads.chip(Data.alphaOf(run, head), false),
              el("span", `${Data.keyOf(head)} · ${Numbers.percent(head[PREVIOUS])}`),
            ),
          ),
        ),
      ),
    );
  }

  // onOpen(run index, key).
  function create({ onOpen }) {
    const element = el("div.compare");
    const onSentence = el("div");

    function show(runs, sentenceId) {
      element.replaceChildren(
        ...[
          alphas(runs),
          densities(runs),
          layerDensities(runs),
          keyDensities(runs),
          Layers.nullRates(runs),
          Layers.diversity(runs),
          positional(runs, onOpen),
          onSentence,
        ].filter(Boolean),
      );
      follow(runs, sentenceId);
    }

    function follow(runs, sentenceId) {
      onSentence.replaceChildren(...[bestPrevious(runs, sentenceId, onOpen)].filter(Boolean));
    }

    return { element, show, follow };
  }

  return { create };
})();
