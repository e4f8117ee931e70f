// Alpha during training: one panel per attention type, one line per head. The step slider reads all heads at one step; at the
// right edge of a panel stands their distribution at that step.

const AlphaPaths = (() => {
  "use strict";

  const { el, svg } = Dom;
  const BINS = 20;

  // Initial and final alpha of every head; null without initial alphas.
  function start(run) {
    const heads = run.heads.filter((head) => !Numbers.missing(head.alpha_initial) && !Numbers.missing(head.alpha));
    if (!heads.length) return null;
    const correlation = (run.alpha_correlation || {}).all;
    const all = heads.flatMap((head) => [head.alpha_initial, head.alpha]);
    const range = [Math.min(1, ...all), Math.max(2, ...all)];
    const chart = Charts.frame({
      width: 400,
      height: 300,
      x: range,
      y: range,
      xTicks: Charts.ticks(...range, 5),
      yTicks: Charts.ticks(...range, 5),
      xForm: (value) => value.toFixed(1),
      yForm: (value) => value.toFixed(1),
      xTitle: "α before training (upward: after)",
      label: `${run.name}: final against initial alpha of ${heads.length} heads, correlation ${Numbers.fixed(correlation, 2, [0, 1])}`,
    });
    chart.plot.append(svg("line", { class: "rule", x1: chart.x(range[0]), x2: chart.x(range[1]), y1: chart.y(range[0]), y2: chart.y(range[1]) }));
    for (const head of heads) {
      const attnType = Data.ATTENTION_TYPES.indexOf(head.attn_type);
      const [from, to] = [head.alpha_initial, head.alpha].map(Numbers.alpha);
      const [x, y] = [chart.x(head.alpha_initial), chart.y(head.alpha)];
      const title = `${Data.keyOf(head)}: ${from} → ${to}`;
      chart.plot.append(Charts.shape(attnType, x, y, Colors.run(attnType), { class: "dot" }, title));
    }
    const attnTypes = Data.attnTypes(run).map((attnType) => {
      const at = Data.ATTENTION_TYPES.indexOf(attnType);
      const sign = svg("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, Charts.shape(at, 6, 6, Colors.run(at)));
      const own = (run.alpha_correlation || {})[attnType];
      return el("span", sign, ` ${Data.ATTENTION_TITLES[attnType]}${Numbers.missing(own) ? "" : `: ${Numbers.fixed(own, 2, [0, 1])}`}`);
    });
    return el(
      "div.start",
      el("h3", "Before and after training"),
      el("p", { class: "lead", id: "alpha-correlation" }, run.alpha_sentence || "α before and after training."),
      el("div.from-to", chart.svg, el("div.flow.legend", attnTypes)),
    );
  }

  // The trajectory of alpha of every head in a small plot; null if training recorded no alphas. Heads at a bound or in the tail
  // of the sigmoid are marked. onOpen(key): a plot was chosen.
  function small(run, onOpen) {
    if (!run.alpha_paths) return null;
    const [width, height, edge] = [76, 40, 5];
    const [first, last] = [run.alpha_steps[0], run.alpha_steps[run.alpha_steps.length - 1]];
    const x = (step) => edge + ((width - 2 * edge) * (step - first)) / Math.max(last - first, 1);
    const y = (alpha) => height - edge - (height - 2 * edge) * Math.min(Math.max(alpha - 1, 0), 1);
    const plot = (attnType, layer, head, path) => {
      const key = `${attnType}.${layer}.${head}`;
      const mark = (run.alpha_marks || {})[key];
      const gradients = ((run.alpha_gradients || {})[attnType] || [])[layer];
      const [from, to] = [path[0], path[path.length - 1]].map(Numbers.alpha);
      const parts = [`${key}: α ${from} → ${to}`];
      if (mark) parts.push(mark === "sigmoid tail" ? "in the tail of the sigmoid" : `${mark}, a bound`);
      if (gradients) {
        const [mean, std] = gradients[head].map((value) => value.toExponential(1));
        parts.push(`dL/dα ${mean} ± ${std} over the last ${Numbers.count(run.alpha_gradients.steps)} steps`);
      }
      const label = parts.join("; ");
      const image = svg(
        "svg",
        { viewBox: `0 0 ${width} ${height}`, width, height, class: `small-path${mark ? " marked" : ""}`, "data-key": key },
        svg("title", label),
        svg("path", { d: Charts.path(path.map((alpha, index) => [x(run.alpha_steps[index]), y(alpha)])), class: "alpha-path" }),
        svg("circle", { cx: x(first), cy: y(path[0]), r: 2.5, class: "from" }),
        svg("circle", { cx: x(last), cy: y(path[path.length - 1]), r: 2.5, class: "to" }),
      );
      return Dom.button(image, () => onOpen(key), { class: "bare", "aria-label": label });
    };
    const note =
      "α of every head from its initial value (○) to now (●), with 1 at the bottom and 2 at the top. " +
      "Orange frame: at a bound, or in the tail of the sigmoid.";
    const attnTypes = Data.ATTENTION_TYPES.filter((attnType) => (run.alpha_paths[attnType] || []).some((layer) => layer.length));
    return el(
      "div.small-paths",
      el("p.note", note),
      el(
        "div.small-grid",
        attnTypes.map((attnType) =>
          el(
            "figure",
            el("figcaption", Data.ATTENTION_TITLES[attnType]),
            run.alpha_paths[attnType].map((heads, layer) =>
              el("div.small-row", heads.map((path, head) => plot(attnType, layer, head, path))),
            ),
          ),
        ),
      ),
    );
  }

  // onOpen(key).
  function create({ onOpen }) {
    const element = el("div.paths");
    let panels = [];
    let steps = [];

    function show(run, chosen) {
      if (!run.alpha_steps || !run.alpha_paths || run.alpha_steps.length < 1) {
        element.replaceChildren(el("p.note", `${run.name} learns no α, or its training recorded none.`));
        panels = [];
        return;
      }
      steps = run.alpha_steps;
      const attnTypes = Data.ATTENTION_TYPES.filter((attnType) => (run.alpha_paths[attnType] || []).some((layer) => layer.length));
      const values = attnTypes.flatMap((attnType) => run.alpha_paths[attnType].flat(2));
      const range = [Math.min(1, ...values.map((value) => value - 0.001)), Math.max(2, ...values)];
      panels = attnTypes.map((attnType) => panel(attnType, run.alpha_paths[attnType], range));
      const slider = el("input", {
        type: "range",
        id: "step-slider",
        min: 0,
        max: steps.length - 1,
        step: 1,
        value: steps.length - 1,
        oninput: (event) => at(Number(event.target.value)),
      });
      const layers = Math.max(...attnTypes.map((attnType) => run.alpha_paths[attnType].length));
      element.replaceChildren(
        el(
          "div.step-control",
          el("label", { for: "step-slider" }, "Training step ", el("output", { for: "step-slider", id: "step-value" })),
          slider,
        ),
        el(
          "div.flow.legend",
          Array.from({ length: layers }, (_, layer) =>
            el("span", el("i", { class: "swatch", style: { background: Colors.layer(layer, layers) } }), `layer ${layer}`),
          ),
        ),
        el("div.chart-row", panels.map((one) => one.node)),
      );
      at(steps.length - 1);
      choose(chosen);
    }

    function panel(attnType, layers, range) {
      const heads = layers.flatMap((paths, layer) =>
        paths.map((path, head) => ({ key: `${attnType}.${layer}.${head}`, layer, path })),
      );
      const last = steps[steps.length - 1];
      const chart = Charts.frame({
        width: 400,
        height: 260,
        margin: { right: 62 },
        x: [steps[0], last > steps[0] ? last : steps[0] + 1],
        y: range,
        yTicks: Charts.ticks(...range, 5),
        yForm: (value) => value.toFixed(1),
        xTicks: Charts.ticks(steps[0], last, 4),
        xForm: (value) => value.toLocaleString("en"),
        xTitle: "training step",
        label: `${Data.ATTENTION_TITLES[attnType]}: alpha of ${heads.length} heads over ${steps.length} steps`,
      });
      const lines = heads.map((head) =>
        svg(
          "path",
          {
            d: Charts.path(head.path.map((alpha, index) => [chart.x(steps[index]), chart.y(alpha)])),
            class: "alpha-path",
            "data-key": head.key,
            stroke: Colors.layer(head.layer, layers.length),
            onclick: () => onOpen(head.key),
          },
          svg("title", `${head.key}, starts at α = ${Numbers.fixed(head.path[0], 3, [1, 2])}, ends at α = ${Numbers.fixed(head.path[head.path.length - 1], 3, [1, 2])}`),
        ),
      );
      const marker = svg("g");
      chart.plot.append(...lines, marker);
      const caption = el("p.note");
      const node = el("div.path-panel", el("h4", Data.ATTENTION_TITLES[attnType]), chart.svg, caption);
      return { node, lines, heads, chart, marker, caption, range, layers: layers.length };
    }

    function at(index) {
      element.querySelector("#step-value").textContent = steps[index].toLocaleString("en");
      element.querySelector("#step-slider").setAttribute("aria-valuetext", `step ${steps[index]}`);
      for (const { heads, chart, marker, caption, range, layers } of panels) {
        const now = heads.map((head) => head.path[index]);
        const counts = Charts.counts(now, range, BINS);
        const most = Math.max(...counts, 1);
        const x = chart.x(steps[index]);
        const edge = chart.width - chart.margin.right + 8;
        const bin = (range[1] - range[0]) / BINS;
        marker.replaceChildren(
          chart.vertical(x, { class: "now" }),
          ...now.map((alpha, head) =>
            svg("circle", { cx: x, cy: chart.y(alpha), r: 3, fill: Colors.layer(heads[head].layer, layers), class: "now-dot" }),
          ),
          ...counts.map((count, index) =>
            svg(
              "rect",
              {
                class: "side-bar",
                x: edge,
                width: (48 * count) / most,
                y: chart.y(range[0] + (index + 1) * bin) + 0.5,
                height: chart.y(range[0]) - chart.y(range[0] + bin) - 1,
                fill: Colors.alpha(range[0] + (index + 0.5) * bin),
              },
              svg("title", `${count} heads`),
            ),
          ),
        );
        const [low, middle, high] = [Math.min(...now), Data.median(now), Math.max(...now)].map(Numbers.alpha);
        caption.textContent = `α from ${low} to ${high}, median ${middle}`;
      }
    }

    function choose(key) {
      for (const { lines } of panels) {
        const own = lines.some((line) => line.dataset.key === key);
        for (const line of lines) {
          line.classList.toggle("chosen", line.dataset.key === key);
          line.classList.toggle("behind", own && line.dataset.key !== key);
        }
      }
    }

    return { element, show, choose };
  }

  return { create, small, start };
})();
