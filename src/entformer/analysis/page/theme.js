// Light or dark: what was chosen here before, else what the system says. The choice stays in this browser.

const Theme = (() => {
  "use strict";

  function set(button, theme, keep) {
    document.documentElement.dataset.theme = theme;
    button.setAttribute("aria-pressed", theme === "dark");
    button.textContent = theme === "dark" ? "Light theme" : "Dark theme";
    if (keep) {
      try {
        localStorage.setItem("entformer-theme", theme);
      } catch {
        // Storage may be closed to local files; the choice then lasts as long as the page.
      }
    }
  }

  function stored() {
    try {
      return localStorage.getItem("entformer-theme");
    } catch {
      return null;
    }
  }

  // repaint(): colors that scripts have set do not follow the style sheet.
  function start(button, repaint) {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const before = stored();
    set(button, ["light", "dark"].includes(before) ? before : system.matches ? "dark" : "light", false);
    button.addEventListener("click", () => {
      set(button, Colors.theme() === "dark" ? "light" : "dark", true);
      repaint();
    });
    system.addEventListener("change", (event) => {
      if (stored()) return;
      set(button, event.matches ? "dark" : "light", false);
      repaint();
    });
  }

  return { start };
})();
