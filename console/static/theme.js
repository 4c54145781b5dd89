// The theme chosen before, set before the first paint.  Without one the system's holds.
"use strict";
try {
  const chosen = localStorage.getItem("bmq-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing for pages follows the system's theme.
}
