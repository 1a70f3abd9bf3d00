// Light and dark: the system's choice until the person makes one.
import { find } from "./dom.js";

const KEY = "snaprag-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

const apply = () => {
  document.documentElement.dataset.theme = localStorage.getItem(KEY) ?? (system.matches ? "dark" : "light");
};

export function watchTheme() {
  apply();
  system.addEventListener("change", apply);
  find("theme").addEventListener("click", () => {
    localStorage.setItem(KEY, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    apply();
  });
}
