// How alpha went during training: one panel per kind, one line per head. The step slider reads all heads at one step; at the
// right edge of a panel stands their distribution at that step.

const AlphaPaths = (() => {
  "use strict";

  const { el, svg } = Dom;
  const BINS = 20;

  // onOpen(key).
  function create({ onOpen }) {
    const element = el("div", { class: "paths" });
    let panels = [];
    let steps = [];

    function show(run, chosen) {
      if (!run.alpha_steps || !run.alpha_paths || run.alpha_steps.length < 1) {
        element.replaceChildren(el("p", { class: "note" }, `${run.name} learns no α, or its training wrote none down.`));
        panels = [];
        return;
      }
      steps = run.alpha_steps;
      const kinds = Data.KINDS.filter((kind) => (run.alpha_paths[kind] || []).some((layer) => layer.length));
      const values = kinds.flatMap((kind) => run.alpha_paths[kind].flat(2));
      const range = [Math.min(1, ...values.map((value) => value - 0.001)), Math.max(2, ...values)];
      panels = kinds.map((kind) => panel(kind, run.alpha_paths[kind], range));
      const slider = el("input", {
        type: "range",
        id: "step-slider",
        min: 0,
        max: steps.length - 1,
        step: 1,
        value: steps.length - 1,
        oninput: (event) => at(Number(event.target.value)),
      });
      const layers = Math.max(...kinds.map((kind) => run.alpha_paths[kind].length));
      element.replaceChildren(
        el(
          "div",
          { class: "step-control" },
          el("label", { for: "step-slider" }, "Training step ", el("output", { for: "step-slider", id: "step-value" })),
          slider,
        ),
        el(
          "div",
          { class: "legend" },
          Array.from({ length: layers }, (_, layer) =>
            el("span", {}, el("i", { class: "swatch", style: { background: Colors.layer(layer, layers) } }), `layer ${layer}`),
          ),
        ),
        el(
          "div",
          { class: "chart-row" },
          panels.map((one) => one.node),
        ),
      );
      at(steps.length - 1);
      choose(chosen);
    }

    function panel(kind, layers, range) {
      const heads = layers.flatMap((paths, layer) =>
        paths.map((path, head) => ({ key: `${kind}.${layer}.${head}`, layer, path })),
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
        says: `${Data.KIND_TITLES[kind]}: alpha of ${heads.length} heads over ${steps.length} steps`,
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
          svg("title", {}, `${head.key}, ends at α = ${head.path[head.path.length - 1].toFixed(3)}`),
        ),
      );
      const marker = svg("g", {});
      chart.plot.append(...lines, marker);
      const caption = el("p", { class: "note" });
      const node = el("div", { class: "path-panel" }, el("h4", {}, Data.KIND_TITLES[kind]), chart.picture, caption);
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
          svg("line", { class: "now", x1: x, x2: x, y1: chart.margin.top, y2: chart.height - chart.margin.bottom }),
          ...now.map((alpha, head) =>
            svg("circle", { cx: x, cy: chart.y(alpha), r: 3, fill: Colors.layer(heads[head].layer, layers), class: "now-dot" }),
          ),
          ...counts.map((count, place) =>
            svg(
              "rect",
              {
                class: "side-bar",
                x: edge,
                width: (48 * count) / most,
                y: chart.y(range[0] + (place + 1) * bin) + 0.5,
                height: chart.y(range[0]) - chart.y(range[0] + bin) - 1,
                fill: Colors.alpha(range[0] + (place + 0.5) * bin),
              },
              svg("title", {}, `${count} heads`),
            ),
          ),
        );
        const [low, middle, high] = [Math.min(...now), Data.median(now), Math.max(...now)].map((alpha) => alpha.toFixed(2));
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

  return { create };
})();
