// What scaled heads learned: a dot per head and seed at one length, layer beside layer.

const Scaling = (() => {
  "use strict";

  const { el, svg } = Dom;
  const TITLES = { beta: "β", gamma: "γ", scale: "factor of the queries" };

  // series: [{name, color, learned}]; the heads of all of them share an axis.
  function draw(series, what, length) {
    const shown = series.map((one) => ({
      ...one,
      dots: one.learned.filter((dot) => dot.length === length && !Numbers.missing(dot[what])),
    }));
    const heads = [...new Set(shown.flatMap(({ dots }) => dots.map(({ layer, head }) => `${layer}.${head}`)))].sort((a, b) => {
      const [left, right] = [a, b].map((key) => key.split(".").map(Number));
      return left[0] - right[0] || left[1] - right[1];
    });
    if (!heads.length) return null;
    const values = shown.flatMap(({ dots }) => dots.map((dot) => dot[what]));
    const [low, high] = [Math.min(0, ...values), Math.max(0.1, ...values)];
    const space = (high - low) * 0.06;
    const chart = Charts.frame({
      width: 400,
      height: 230,
      x: [-0.5, heads.length - 0.5],
      y: [low < 0 ? low - space : 0, high + space],
      xTicks: heads.map((_, index) => index).filter((index) => index % Math.ceil(heads.length / 10) === 0),
      xForm: (index) => heads[index],
      yForm: (value) => Number(value.toPrecision(3)),
      xTitle: "layer.head",
      margin: { left: 44 },
      label: `${TITLES[what]} of each scaled head at length ${length}`,
    });
    shown.forEach(({ name, color, dots }, number) => {
      const shift = 0.5 * ((number + 1) / (shown.length + 1) - 0.5);
      for (const dot of dots) {
        chart.plot.append(
          svg(
            "circle",
            { class: "dot", cx: chart.x(heads.indexOf(`${dot.layer}.${dot.head}`) + shift), cy: chart.y(dot[what]), r: 4, fill: color },
            svg("title", `${name}, layer ${dot.layer}, head ${dot.head}, seed ${dot.seed}: ${Numbers.fixed(dot[what], 3)}`),
          ),
        );
      }
    });
    return el("figure.curve", el("figcaption", el("h3", TITLES[what])), chart.svg);
  }

  return { draw };
})();
