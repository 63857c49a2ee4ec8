// Runs before the first paint, so that no page flashes in the other theme.
// A file of its own: the service forbids inline scripts.
try {
  const theme = localStorage.getItem("tidecast.theme") ?? "system";
  const dark =
    theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
} catch {
  document.documentElement.dataset.theme = "dark";
}
