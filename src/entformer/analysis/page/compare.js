// All runs side by side, in the layout of Figures 3 to 7 of the paper: a column per run, a line per kind of attention.

const Compare = (() => {
  "use strict";

  const { el, svg } = Dom;
  const BINS = 20;
  const OFFSETS = [
    ["-1", "previous token"],
    ["0", "the token itself"],
    ["1", "next token"],
  ];

  const summed = (heads) =>
    heads.reduce((sum, head) => (head.density_histogram || []).map((count, bin) => count + (sum[bin] || 0)), []);

  // The highest share in any histogram, for one scale in all; one that is a single bar (softmax) would flatten the others and
  // does not count.
  function tallest(all) {
    const shares = all
      .filter((counts) => counts.length)
      .map((counts) => Math.max(...counts) / (counts.reduce((a, b) => a + b, 0) || 1));
    const spread = shares.filter((share) => share < 0.9);
    return spread.length ? Math.max(0.05, ...spread) : 1;
  }

  const allKinds = (runs) => Data.KINDS.filter((kind) => runs.some((run) => Data.kindsOf(run).includes(kind)));

  // A table of charts: kinds down, runs across. draw(run, heads, kind, index) gives a chart or null.
  function matrix(runs, draw) {
    const kinds = allKinds(runs);
    if (runs.length === 1) {
      return el(
        "div",
        { class: "chart-row" },
        kinds.map((kind) =>
          el("div", {}, el("h4", {}, Data.KIND_TITLES[kind]), draw(runs[0], Data.headsOf(runs[0], kind), kind, 0)),
        ),
      );
    }
    return el(
      "div",
      { class: "matrix", style: { "--runs": runs.length } },
      kinds.map((kind) => [
        el("h4", { class: "kind-name" }, Data.KIND_TITLES[kind]),
        runs.map((run, index) =>
          el(
            "div",
            { class: "one" },
            el("p", { class: "run-name", style: { color: Colors.run(index) } }, run.name),
            draw(run, Data.headsOf(run, kind), kind, index) || el("p", { class: "note" }, "–"),
          ),
        ),
      ]),
    );
  }

  // A fixed alpha is the same everywhere; what was learned left a path or differs from head to head.
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
    const values = (run, kind) =>
      Data.headsOf(run, kind)
        .map((head) => head.alpha)
        .filter((alpha) => !Numbers.missing(alpha));
    const all = learning.flatMap((run) => run.heads.map((head) => head.alpha ?? 1));
    const only = runs.length > 1 && learning.length === 1 ? ` Only ${learning[0].name} learns it.` : "";
    const range = [1, Math.max(2, ...all)];
    const top = Math.min(
      1,
      tallest(learning.flatMap((run) => allKinds(runs).map((kind) => Charts.counts(values(run, kind), range, BINS)))),
    );
    return Charts.figure(
      "Learned α",
      `The share of heads at each α: 1 is softmax, 2 is sparsemax.${only}${learning.map(fromStart).join("")}`,
      matrix(learning, (run, heads, kind) => {
        const own = values(run, kind);
        return (
          own.length &&
          Charts.histogram(Charts.counts(own, range, BINS), {
            x: range,
            top,
            color: Colors.run(runs.indexOf(run)),
            xForm: (value) => value.toFixed(1),
            markForm: Numbers.alpha,
            mark: Data.mean(own),
            says: `${run.name}, ${Data.KIND_TITLES[kind]}: ${own.length} heads, mean alpha ${Numbers.alpha(Data.mean(own))}`,
          })
        );
      }),
    );
  }

  function densities(runs) {
    const top = Math.min(1, tallest(runs.flatMap((run) => allKinds(runs).map((kind) => summed(Data.headsOf(run, kind))))));
    return Charts.figure(
      "How much of a sentence a head looks at",
      "The share of heads and sentences at each density: the part of the visible keys with weight, averaged over the rows of " +
        "the sentence. Softmax would be one bar at 100%.",
      matrix(runs, (run, heads, kind, index) => {
        const counts = summed(heads);
        const mean = Data.mean(heads.map((head) => head.density));
        return (
          counts.length &&
          Charts.histogram(counts, {
            x: [0, 1],
            top,
            color: Colors.run(index),
            xForm: Charts.share,
            markForm: Numbers.percent,
            mark: mean,
            says: `${run.name}, ${Data.KIND_TITLES[kind]}: mean density ${Numbers.percent(mean)}`,
          })
        );
      }),
    );
  }

  const layerRange = (runs) => {
    const layers = runs.flatMap((run) => run.heads.map((head) => head.layer));
    return [Math.min(...layers), Math.max(...layers)];
  };
  const whole = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => from + index);

  function layerDensities(runs) {
    const [first, last] = layerRange(runs);
    return Charts.figure(
      "Density by layer",
      "A dot is a head, the line their mean. Dashed: the share of keys that at least one head of the layer looks at.",
      matrix(runs, (run, heads, kind, index) => {
        if (!heads.length) return null;
        const chart = Charts.frame({
          height: 180,
          x: [first - 0.4, last + 0.4],
          y: [0, 1],
          xTicks: whole(first, last),
          yForm: Charts.share,
          xTitle: "layer",
          says: `${run.name}, ${Data.KIND_TITLES[kind]}: density of each head by layer`,
        });
        const layers = (run.layers || []).filter((layer) => layer.kind === kind).sort((a, b) => a.layer - b.layer);
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
              svg("title", {}, `${Data.keyOf(head)}: ${Numbers.percent(head.density)}`),
            ),
          ),
        );
        return chart.picture;
      }),
    );
  }

  // "4 heads, median confidence 96%", as the paper counts them.
  function counted(run, offset, color) {
    const found = (run.positional_heads || []).find((one) => one.offset === offset);
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
    const panels = OFFSETS.map(([offset, name]) => {
      const height = 34 * runs.length + 56;
      const chart = Charts.frame({
        width: 400,
        height,
        margin: { left: 14, right: 20, top: 22 },
        x: [0, 1],
        y: [runs.length - 0.5, -0.5],
        yTicks: [],
        xForm: Charts.share,
        xTitle: "median confidence",
        says: `Confidence of every self-attention head on ${name}, per run`,
      });
      runs.forEach((run, index) => {
        const heads = run.heads.filter((head) => head.kind !== "cross" && !Numbers.missing((head.positional || {})[offset]));
        const best = heads.reduce((top, head) => (top && top.positional[offset] >= head.positional[offset] ? top : head), null);
        chart.plot.append(
          svg("line", { class: "rule", x1: chart.x(0), x2: chart.x(1), y1: chart.y(index), y2: chart.y(index) }),
        );
        for (const head of heads) {
          const node = Charts.shape(index, chart.x(head.positional[offset]), chart.y(index), Colors.run(index));
          node.setAttribute("class", head === best ? "dot best" : "dot");
          node.addEventListener("click", () => onOpen(index, Data.keyOf(head)));
          node.append(svg("title", {}, `${run.name} ${Data.keyOf(head)}: ${Numbers.percent(head.positional[offset])}`));
          chart.plot.append(node);
        }
        if (best) {
          const near = best.positional[offset] > 0.5;
          chart.plot.append(
            svg(
              "text",
              {
                class: "tick strong",
                x: chart.x(best.positional[offset]) + (near ? 4 : -4),
                y: chart.y(index) - 9,
                "text-anchor": near ? "end" : "start",
              },
              `${Data.keyOf(best)}  ${Numbers.percent(best.positional[offset])}`,
            ),
          );
        }
      });
      return el(
        "div",
        {},
        el("h4", {}, `On ${name}`),
        chart.picture,
        runs.map((run, index) => counted(run, Number(offset), runs.length > 1 && Colors.run(index))),
      );
    });
    return Charts.figure(
      "Positional heads",
      "Each mark is a self-attention head: the median weight it puts on a fixed offset. " +
        "The surest head of each run is named. Counted are heads of a confidence of 40% or more.",
      Charts.runLegend(runs),
      el("div", { class: "chart-row" }, panels),
    );
  }

  // The head that looks at the previous token most surely, in each run, on one sentence.
  function surest(runs, sentenceId, onOpen) {
    const best = runs
      .map((run, index) => {
        const sentence = run.sentences.find((one) => one.id === sentenceId);
        const heads = run.heads.filter((head) => head.kind === "encoder" && !Numbers.missing((head.positional || {})["-1"]));
        const head = heads.sort((a, b) => b.positional["-1"] - a.positional["-1"])[0];
        const rows = sentence && head && Data.storedRows(sentence, Data.keyOf(head));
        return rows && { run, index, head, rows };
      })
      .filter(Boolean);
    if (!best.length) return null;
    return Charts.figure(
      "The surest previous-token head",
      "In the encoder of each run, on the sentence chosen above. Blank is exactly 0.",
      el(
        "div",
        { class: "surest" },
        best.map(({ run, index, head, rows }) => {
          const canvas = el("canvas", { class: "thumbnail", "aria-hidden": "true" });
          Heads.thumbnail(canvas, rows);
          return el(
            "button",
            { type: "button", class: "head wide", onclick: () => onOpen(index, Data.keyOf(head)) },
            el("span", { class: "run-name", style: { color: Colors.run(index) } }, run.name),
            canvas,
            el(
              "span",
              { class: "facts" },
              Heads.chip(Data.alphaOf(run, head), false),
              el("span", {}, `${Data.keyOf(head)} · ${Numbers.percent(head.positional["-1"])}`),
            ),
          );
        }),
      ),
    );
  }

  // onOpen(run index, key).
  function create({ onOpen }) {
    const element = el("div", { class: "compare" });
    const onSentence = el("div", {});

    function show(runs, sentenceId) {
      element.replaceChildren(
        ...[
          alphas(runs),
          densities(runs),
          layerDensities(runs),
          Layers.nullRates(runs),
          Layers.diversity(runs),
          positional(runs, onOpen),
          onSentence,
        ].filter(Boolean),
      );
      follow(runs, sentenceId);
    }

    function follow(runs, sentenceId) {
      onSentence.replaceChildren(...[surest(runs, sentenceId, onOpen)].filter(Boolean));
    }

    return { element, show, follow };
  }

  return { create };
})();
