// The scripts of the pages are inlined one after another into one HTML file: each defines one global object, which later ones use.
import { readdirSync, readFileSync } from "node:fs";

const directories = ["src/entformer/analysis/page", "src/entformer/explore/page", "src/entformer/widget/page"];
const scripts = directories.flatMap((directory) =>
  readdirSync(directory)
    .filter((name) => name.endsWith(".js"))
    .map((name) => readFileSync(`${directory}/${name}`, "utf-8")),
);
const own = scripts.flatMap((text) => [...text.matchAll(/^(?:const|let|var|function) (\w+)/gm)].map((match) => match[1]));
const browser = [
  "AbortController", "DOMMatrix", "HTMLTableCellElement", "IntersectionObserver", "ResizeObserver", "TextDecoder",
  "TextEncoder", "URL", "URLSearchParams", "atob", "clearTimeout", "devicePixelRatio", "document", "fetch", "getComputedStyle",
  "history", "innerHeight", "localStorage", "location", "matchMedia", "navigator", "performance", "requestAnimationFrame",
  "setTimeout", "window",
];

export default [
  {
    files: directories.map((directory) => `${directory}/*.js`),
    languageOptions: {
      ecmaVersion: 2023,
      sourceType: "script",
      globals: Object.fromEntries([...browser, ...own].map((name) => [name, "readonly"])),
    },
    rules: {
      "no-undef": "error",
      "no-unused-vars": ["error", { vars: "local", caughtErrors: "none" }],
      "no-const-assign": "error",
      "no-dupe-keys": "error",
      "no-duplicate-case": "error",
      "no-fallthrough": "error",
      "no-self-assign": "error",
      "no-unreachable": "error",
      "no-var": "error",
      "prefer-const": "error",
      eqeqeq: "error",
    },
  },
];
