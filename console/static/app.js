// Frame of all pages: addresses after "#", the refresh, and the errors of the process.

import { ApiError, get, whenLost } from "./api.js";
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
import { transactionPage } from "./pages/transaction.js";
import { transactionsPage } from "./pages/transactions.js";
import { forgetUser, loadUser, logOut, loginPage, mayCluster, user } from "./session.js";
import { button, empty, failure, icon, link, loading, pageHead } from "./widgets.js";

const NAVIGATION = [
  { name: "overview", title: "Overview", href: "#/", ofCluster: true },
  { name: "topics", title: "Topics", href: "#/topics" },
  { name: "groups", title: "Groups", href: "#/groups" },
  { name: "transactions", title: "Transactions", href: "#/transactions" },
  { name: "members", title: "Members", href: "#/members", ofCluster: true },
  { name: "storage", title: "Storage", href: "#/storage", ofCluster: true },
];
const ROUTES = [
  [/^\/$/, overviewPage],
  [/^\/topics$/, topicsPage],
  [/^\/topics\/([^/]+)(?:\/(records|configs))?$/, topicPage],
  [/^\/topics\/([^/]+)\/partitions\/(\d+)$/, partitionPage],
  [/^\/groups$/, groupsPage],
  [/^\/groups\/([^/]+)$/, groupPage],
  [/^\/transactions$/, transactionsPage],
  [/^\/transactions\/([^/]+)$/, transactionPage],
  [/^\/members$/, membersPage],
  [/^\/storage$/, storagePage],
];
const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

const app = {
  query: new URLSearchParams(),
  cluster: null,
  isPaused: false,
  page: null,
  /** Draw the page from the facts that are loaded. */
  draw,
  /** Load the page's facts again at once. */
  reload: () => load(app.page),
  tell,
  /** Change parameters of this page's address, without a new entry in the browser's history. */
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
  /** Change parameters of this page's address and load it; with `delayMs`, once they have not changed for so long. */
  ask(changes, delayMs = 0) {
    const { page } = app;
    clearTimeout(page.timer);
    stopLoading(page);
    page.isStale = true;
    app.set(changes);
    if (delayMs) page.timer = setTimeout(() => load(page), delayMs);
    else load(page);
  },
  go(hash) {
    location.hash = hash;
  },
};
let root;
let main;

// ------------------------------------------------------------------------------------------------------------- pages

/** Open the page of the address, after the log-in if one is needed. */
async function enter() {
  if (await loadUser()) route();
  else askToLogIn();
}

/** Show the log-in in place of the page, which is opened again after it. */
function askToLogIn() {
  if (app.page?.isLogin) return;
  leave(app.page);
  app.cluster = null;
  app.page = { path: "login", isLogin: true, data: null, error: null, isStale: false, timer: null, loading: null, ...loginPage(loggedIn, () => app.page?.isLogin && draw()) };
  draw();
  document.title = `${app.page.title} · BMQ`;
  load(app.page);
}

function loggedIn() {
  app.page = null;
  route();
  main.querySelector("h1")?.focus();
}

async function leaveConsole() {
  try {
    await logOut();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(error.message, "bad");
    return;
  }
  askToLogIn();
}

function route() {
  if (app.page?.isLogin) return;
  const [path, query = ""] = (location.hash.replace(/^#/, "") || "/").split("?");
  if (path === "/" && !mayCluster("DESCRIBE")) {
    location.replace("#/topics");
    return;
  }
  app.query = new URLSearchParams(query);
  if (app.page?.path === path) {
    draw();
    if (app.page.queried) app.page.queried();
    else load(app.page);
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
      break; // a broken escape is not an address
    }
    return { path, data: null, error: null, isStale: false, timer: null, loading: null, ...make(app, ...values) };
  }
  return { path, title: "Not found", section: "", data: {}, error: null, load: null, view: () => [pageHead("Not found"), empty("There is no such page.", link("Overview", "#/"))] };
}

function leave(page) {
  if (!page) return;
  clearTimeout(page.timer);
  stopLoading(page);
  page.left?.();
}

function stopLoading(page) {
  page.loading?.abort();
  page.loading = null;
}

/** Load the page's facts, draw them, and load them again after its refresh time.  Cancels a load under way. */
async function load(page) {
  if (!page?.load) return;
  clearTimeout(page.timer);
  stopLoading(page);
  const request = (page.loading = new AbortController());
  let data = page.data;
  let failed = null;
  try {
    data = await page.load(request.signal, page.data);
  } catch (error) {
    failed = error;
  }
  if (page.loading !== request) return; // a later load has begun, or the page was left
  if (failed !== null && !(failed instanceof ApiError)) console.error(failed);
  Object.assign(page, { data, error: failed, loading: null, isStale: false });
  arm(page);
  draw();
  if (page.isLogin) return;
  if (app.cluster === null && failed === null && mayCluster("DESCRIBE")) loadCluster();
  loadUser();
}

/** Load the page again after its refresh time.  A hidden or paused page has no timer: `resume` loads it at once. */
function arm(page) {
  clearTimeout(page.timer);
  const waitMs = typeof page.refreshMs === "function" ? page.refreshMs(page.data) : page.refreshMs;
  if (waitMs && !app.isPaused && !document.hidden) page.timer = setTimeout(() => load(page), waitMs);
}

function resume() {
  const { page } = app;
  if (page === null) return; // the user is not known yet
  if (page.loading === null && (page.isStale || (page.refreshMs && !app.isPaused))) load(page);
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
  return h("main", { id: "main", tabindex: "-1", "data-key": `page ${page.path}`, "aria-busy": page.isStale || (page.data === null && !page.error) ? "true" : null }, content);
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
      NAVIGATION.filter(({ ofCluster }) => !page.isLogin && (!ofCluster || mayCluster("DESCRIBE"))).map(({ name, title, href }) => h("a", { href, "aria-current": page.section === name ? "page" : null }, icon(name), h("span", null, title))),
    ),
    h(
      "div",
      { class: "side-foot" },
      user()?.has_to_log_in ? h("p", { class: "user", title: user().principal }, user().principal.replace(/^User:/, "")) : null,
      user()?.has_to_log_in ? button("Log out", leaveConsole, "quiet") : null,
      page.isLogin ? null : button(app.isPaused ? "Refresh: paused" : "Refresh: on", togglePause, "quiet", { "aria-pressed": String(app.isPaused), title: "Pages are loaded again every few seconds" }),
      button(THEMES[theme], nextTheme, "quiet"),
      h("p", { class: "version" }, cluster ? `version ${cluster.version}` : ""),
    ),
  );
}

function togglePause() {
  app.isPaused = !app.isPaused;
  draw();
  if (app.isPaused && !app.page.isStale) clearTimeout(app.page.timer);
  else resume();
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("bmq-theme", next);
  } catch {
    // The browser stores nothing: the theme is kept until the page is closed.
  }
  draw();
}

/** Load the cluster's id and version.  An error is shown by the page's own load; the page's next refresh tries again. */
async function loadCluster() {
  try {
    app.cluster = await get("cluster");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return;
  }
  draw();
}

root = h("div", { class: "shell" });
document.body.append(root, h("div", { id: "messages", role: "status", "aria-live": "polite" }));
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(app.page?.timer);
  else resume();
});
whenLost(() => {
  forgetUser();
  if (app.page !== null) askToLogIn();
});
enter();
