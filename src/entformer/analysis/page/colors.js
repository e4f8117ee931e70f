// Color scales. Weights: one hue, light to dark (dark theme: dark to light). Alpha 1 to 2: blue over gray to yellow, told
// apart with any type of color vision. Layers: steps of one scale. Runs: the Okabe-Ito colors, dark enough for text, always together with a shape
// or a dash.

const Colors = (() => {
  "use strict";

  const WEIGHT = {
    light: ["#c9dcf0", "#8fbbe0", "#4f93cb", "#1f66a8", "#0b2f66"],
    dark: ["#23415f", "#2f6496", "#4a90c9", "#8cc4ee", "#e6f4ff"],
  };
  const ALPHA = ["#1d4a8c", "#5b77a3", "#9a9a94", "#cdb45c", "#f5cf2e"];
  const LAYER = {
    light: ["#e0a100", "#c8553d", "#8f2d7a", "#3d3a9e", "#1c6f8c", "#2a8a57"],
    dark: ["#ffd166", "#ff9678", "#df8fd3", "#a5a4ff", "#74cbe8", "#7fdca6"],
  };
  const RUN = {
    light: ["#0072b2", "#b85000", "#00815f", "#a8508a", "#8a6d00", "#444444"],
    dark: ["#56b4e9", "#ff9d4d", "#3fd0a4", "#e7a3cc", "#f0e442", "#cccccc"],
  };
  const DASHES = ["none", "7 4", "2 3", "9 3 2 3", "4 2", "12 4"];

  const theme = () => (document.documentElement.dataset.theme === "dark" ? "dark" : "light");
  const parsed = new Map();

  function parse(hex) {
    if (!parsed.has(hex)) parsed.set(hex, [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    return parsed.get(hex);
  }

  function between(stops, share) {
    const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const at = Math.min(Math.floor(place), stops.length - 2);
    const [from, to] = [parse(stops[at]), parse(stops[at + 1])];
    return from.map((value, channel) => Math.round(value + (to[channel] - value) * (place - at)));
  }

  const css = (rgb) => `rgb(${rgb.join(",")})`;

  // A positive weight, however small, keeps the first color of the ramp: it never looks like a zero.
  const weightRgb = (weight) => between(WEIGHT[theme()], Math.sqrt(Math.min(weight, 1)));
  const weight = (value) => css(weightRgb(value));
  const zeroRgb = () => parse(token("--exact-zero"));
  const alphaRgb = (value) => between(ALPHA, value - 1);
  const alpha = (value) => css(alphaRgb(value));

  // Black or white, whichever is easier to read on this color: the contrast is 4.58 or more.
  function ink(rgb) {
    const [r, g, b] = rgb.map((value) =>
      value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4,
    );
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
  }

  function layer(index, count) {
    const colors = LAYER[theme()];
    return count <= colors.length ? colors[index] : css(between(colors, index / Math.max(count - 1, 1)));
  }

  const run = (index) => RUN[theme()][index % RUN.light.length];
  const runRepeats = (index) => index >= RUN.light.length; // then something else than color must tell it apart
  const dash = (index) => DASHES[index % DASHES.length];
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  return { theme, weight, weightRgb, zeroRgb, alpha, alphaRgb, ink, layer, run, runRepeats, dash, token };
})();
