// The frame around the pages: addresses behind "#", the refresh, and what is drawn when a process does not answer.

import { get } from "./api.js";
import { h, patchChildren } from "./dom.js";
import { tell } from "./dialog.js";
import { groupPage } from "./pages/group.js";
import { groupsPage } from "./pages/groups.js";
import { membersPage } from "./pages/members.js";
import { overviewPage } from "./pages/overview.js";
import { partitionPage } from "./pages/partition.js";
import { storagePage } from "./pages/storage.js";
import { topicPage } from "./pages/topic.js";
import { topicsPage } from "./pages/topics.js";
import { button, empty, failure, icon, link, loading, pageHead } from "./widgets.js";

const NAVIGATION = [
  { name: "overview", title: "Overview", href: "#/" },
  { name: "topics", title: "Topics", href: "#/topics" },
  { name: "groups", title: "Groups", href: "#/groups" },
  { name: "members", title: "Members", href: "#/members" },
  { name: "storage", title: "Storage", href: "#/storage" },
];
const ROUTES = [
  [/^\/$/, overviewPage],
  [/^\/topics$/, topicsPage],
  [/^\/topics\/([^/]+)(?:\/(records|configs))?$/, topicPage],
  [/^\/topics\/([^/]+)\/partitions\/(\d+)$/, partitionPage],
  [/^\/groups$/, groupsPage],
  [/^\/groups\/([^/]+)$/, groupPage],
  [/^\/members$/, membersPage],
  [/^\/storage$/, storagePage],
];
const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

const app = {
  query: new URLSearchParams(),
  cluster: null,
  isPaused: false,
  page: null,
  /** Draw what is known now. */
  draw,
  /** Ask again at once. */
  reload: () => load(app.page),
  tell,
  /** Change parameters of this page's address; without a new entry in the history, for what is typed. */
  set(changes) {
    const query = new URLSearchParams(app.query);
    for (const [name, value] of Object.entries(changes)) {
      if (value === "" || value === null) query.delete(name);
      else query.set(name, value);
    }
    const text = query.toString();
    history.replaceState(null, "", `#${app.page.path}${text ? `?${text}` : ""}`);
    app.query = query;
    draw();
  },
  go(hash) {
    location.hash = hash;
  },
};
let root;
let main;

// ------------------------------------------------------------------------------------------------------------- pages

function route() {
  const [path, query = ""] = (location.hash.replace(/^#/, "") || "/").split("?");
  app.query = new URLSearchParams(query);
  if (app.page?.path === path) {
    app.page.queried?.();
    draw();
    return;
  }
  const isFirst = app.page === null;
  leave(app.page);
  app.page = open(path);
  draw();
  document.title = `${app.page.title} · BMQ`;
  main.scrollTo?.(0, 0);
  window.scrollTo(0, 0);
  if (!isFirst) main.querySelector("h1")?.focus();
  load(app.page);
}

function open(path) {
  for (const [pattern, make] of ROUTES) {
    const found = pattern.exec(path);
    if (!found) continue;
    let values;
    try {
      values = found.slice(1).map((value) => (value === undefined ? value : decodeURIComponent(value)));
    } catch {
      break; // a broken escape is no address
    }
    return { path, data: null, error: null, at: null, timer: null, loading: null, ...make(app, ...values) };
  }
  return { path, title: "Not found", section: "", data: {}, error: null, load: null, view: () => [pageHead("Not found"), empty("There is no such page.", link("Overview", "#/"))] };
}

function leave(page) {
  if (!page) return;
  clearTimeout(page.timer);
  page.loading?.abort();
}

/** Ask for the page's facts, draw them, and ask again after its time. */
async function load(page) {
  if (!page.load) return;
  clearTimeout(page.timer);
  page.loading?.abort();
  const loadingNow = (page.loading = new AbortController());
  try {
    page.data = await page.load(loadingNow.signal, page.data);
    page.error = null;
    page.at = Date.now();
  } catch (error) {
    if (loadingNow.signal.aborted) return;
    page.error = error;
    if (!("status" in error)) console.error(error);
  }
  if (app.page !== page || page.loading !== loadingNow) return;
  page.loading = null;
  draw();
  const waitMs = typeof page.refreshMs === "function" ? page.refreshMs(page.data) : page.refreshMs;
  if (waitMs) page.timer = setTimeout(() => refresh(page), waitMs);
}

function refresh(page) {
  if (app.page !== page) return;
  // A hidden page asks nothing; it asks at once when it is looked at again.
  if (app.isPaused || document.hidden) page.timer = setTimeout(() => refresh(page), 1000);
  else load(page);
}

// ------------------------------------------------------------------------------------------------------------- frame

function draw() {
  const { page } = app;
  const next = h("div", null, sidebar(page), mainOf(page));
  patchChildren(root, next);
  main = root.querySelector("main");
}

function mainOf(page) {
  let content;
  if (page.data !== null) content = [page.error ? failure(page.error, app.reload, true) : null, page.view(page.data)];
  else if (page.error) content = [pageHead(page.title), failure(page.error, app.reload)];
  else content = [pageHead(page.title), loading()];
  return h("main", { id: "main", tabindex: "-1", "data-key": `page ${page.path}`, "aria-busy": page.data === null && !page.error ? "true" : null }, content);
}

function sidebar(page) {
  const theme = document.documentElement.dataset.theme ?? "auto";
  const { cluster } = app;
  return h(
    "header",
    { class: "sidebar" },
    button("Skip to the page", () => main.focus(), "skip"),
    h("a", { class: "brand", href: "#/" }, h("img", { src: "static/icon.svg", alt: "", width: "28", height: "28" }), h("span", null, "BMQ", cluster ? h("small", null, cluster.cluster_id) : null)),
    h(
      "nav",
      { "aria-label": "Console" },
      NAVIGATION.map(({ name, title, href }) => h("a", { href, "aria-current": page.section === name ? "page" : null }, icon(name), h("span", null, title))),
    ),
    h(
      "div",
      { class: "side-foot" },
      button(app.isPaused ? "Refresh: paused" : "Refresh: on", togglePause, "quiet", { "aria-pressed": String(app.isPaused), title: "Pages ask the process again every few seconds" }),
      button(THEMES[theme], nextTheme, "quiet"),
      h("p", { class: "version" }, cluster ? `version ${cluster.version}` : ""),
    ),
  );
}

function togglePause() {
  app.isPaused = !app.isPaused;
  draw();
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("bmq-theme", next);
  } catch {
    // Kept until the page is closed.
  }
  draw();
}

async function loadCluster() {
  try {
    app.cluster = await get("cluster");
    draw();
  } catch {
    setTimeout(loadCluster, 5000); // the page itself shows why nothing is answered
  }
}

root = h("div", { class: "shell" });
document.body.append(root, h("div", { id: "messages", role: "status", "aria-live": "polite" }));
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && app.page?.loading === null && !app.isPaused) load(app.page);
});
route();
loadCluster();
