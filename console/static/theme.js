// Sets the theme that was chosen earlier, before the first paint.  Without one the system's applies.
"use strict";
try {
  const chosen = localStorage.getItem("bmq-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that stores nothing for pages gets the system's theme.
}
