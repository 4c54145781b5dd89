// Elements that several pages use.

import { h, s } from "./dom.js";
import { count, plural } from "./format.js";

/** Return a word with a colour: `tone` is good, warn, bad, info or "" (neutral).  The word says it without the colour. */
export function badge(text, tone = "") {
  return h("span", { class: `badge ${tone}` }, text);
}

/** Return a heading, its remark, and buttons. */
export function pageHead(title, remark, ...actions) {
  return h(
    "header",
    { class: "page-head" },
    h("div", null, h("h1", { tabindex: "-1" }, title), remark ? h("p", { class: "remark" }, remark) : null),
    actions.length ? h("div", { class: "actions" }, actions) : null,
  );
}

export function button(text, onclick, kind = "", props = {}) {
  return h("button", { type: "button", class: `button ${kind}`, onclick, ...props }, text);
}

export function link(text, href, props = {}) {
  return h("a", { href, ...props }, text);
}

/** Return a section with a title. */
export function card(title, body, ...actions) {
  const id = `card-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h(
    "section",
    { class: "card", "aria-labelledby": id },
    h("div", { class: "card-head" }, h("h2", { id }, title), actions.length ? h("div", { class: "actions" }, actions) : null),
    body,
  );
}

/** Return one number with its name. */
export function tile(name, value, remark = "", href = null) {
  const shown = href ? h("a", { class: "cover", href, "aria-label": `${name}: ${value}` }, value) : value;
  return h("div", { class: "tile" }, h("dt", null, name), h("dd", null, shown, remark ? h("span", { class: "tile-remark" }, remark) : null));
}

export function tiles(...each) {
  return h("dl", { class: "tiles" }, each);
}

/** Return tiles in rows of four. */
export function tilesOfFour(...each) {
  return h("dl", { class: "tiles four" }, each);
}

/** Return the text in place of an empty table, with advice. */
export function empty(text, ...more) {
  return h("div", { class: "empty" }, h("p", null, text), more);
}

/** Return an error with its cause, and a button that tries again. */
export function failure(error, retry, hasOld = false) {
  const text = error.status === 0 ? "No response" : error.status === 404 ? "Not found" : error.status === 403 ? "Not allowed" : "This cannot be shown";
  return h(
    "div",
    { class: "notice bad", role: "alert" },
    h("div", null, h("strong", null, hasOld ? `${text}: the facts below are older` : text), h("p", null, error.message || String(error))),
    retry ? button("Try again", retry) : null,
  );
}

/** Return a list of notes for an operator: [{tone, title, text, href}]. */
export function notices(found) {
  return h(
    "ul",
    { class: "notices" },
    found.map(({ tone, title, text, href }) =>
      h("li", { class: `notice ${tone}` }, h("div", null, h("strong", null, title), h("p", null, text)), href ? link("Show", href, { "aria-label": `Show: ${title}` }) : null),
    ),
  );
}

export function loading() {
  return h("div", { class: "loading", role: "status" }, "Loading…");
}

/**
 * Return a table.  `columns` are {name, title, cell(row), sort(row)?, align?, class?}; `order` is {by, down}, and
 * `onsort(name)` changes it; `detail(row)` returns what is shown below a row, or null.  `label` is for screen readers.
 */
export function table({ label, columns, rows, keyOf, order = null, onsort = null, rowClass = null, detail = null }) {
  const head = columns.map((column) => {
    const props = { scope: "col", class: column.align === "right" ? "right" : null };
    if (!column.sort || !onsort) {
      return h("th", props, column.title ? column.title : h("span", { class: "unseen" }, column.label ?? "Acts"));
    }
    const isOrder = order?.by === column.name;
    props["aria-sort"] = isOrder ? (order.down ? "descending" : "ascending") : "none";
    const mark = isOrder ? (order.down ? "↓" : "↑") : "";
    return h("th", props, h("button", { type: "button", class: "sort", onclick: () => onsort(column.name) }, column.title, h("span", { class: "mark", "aria-hidden": "true" }, mark)));
  });
  const body = rows.flatMap((row) => {
    const key = keyOf(row);
    const cells = columns.map((column, index) =>
      h(index === 0 ? "th" : "td", { scope: index === 0 ? "row" : null, class: [column.align === "right" ? "right" : "", column.class ?? ""].join(" ").trim() || null }, column.cell(row)),
    );
    const line = h("tr", { "data-key": `row ${key}`, class: rowClass ? rowClass(row) : null }, cells);
    const more = detail?.(row);
    return more ? [line, h("tr", { class: "detail", "data-key": `more ${key}` }, h("td", { colspan: columns.length }, more))] : [line];
  });
  return h(
    "div",
    { class: "table-wrap", role: "region", "aria-label": label, tabindex: "0" },
    h("table", null, h("thead", null, h("tr", null, head)), h("tbody", null, body)),
  );
}

/** Return `rows` sorted by a column, with unknown values last in both directions. */
export function sorted(rows, columns, order) {
  const column = columns.find((each) => each.name === order.by && each.sort);
  if (!column) return rows;
  const sign = order.down ? -1 : 1;
  return [...rows].sort((one, other) => {
    const a = column.sort(one);
    const b = column.sort(other);
    const isUnknownA = a === null || a === undefined;
    const isUnknownB = b === null || b === undefined;
    if (isUnknownA || isUnknownB) return isUnknownA - isUnknownB;
    if (a === b) return 0;
    return (a < b ? -1 : 1) * sign;
  });
}

/** Return the order after a click on the title of the column `name`: "name", then "-name". */
export function nextOrder(order, name) {
  return order.by === name && !order.down ? `-${name}` : name;
}

/** Return the order in the URL's parameter `text`; if that is empty, `otherwise`. */
export function orderOf(text, otherwise = "") {
  const wanted = text || otherwise;
  return { by: wanted.replace(/^-/, ""), down: wanted.startsWith("-") };
}

/** Return the rows that are shown, and buttons for other pages of a list if there are any. */
export function pager({ page, size, total, go, what }) {
  const pages = Math.max(1, Math.ceil(total / size));
  const from = total === 0 ? 0 : page * size + 1;
  const to = Math.min(total, (page + 1) * size);
  const text = pages === 1 ? plural(total, what) : `${count(from)} to ${count(to)} of ${plural(total, what)}`;
  if (pages === 1) return h("p", { class: "pager" }, text);
  return h(
    "nav",
    { class: "pager", "aria-label": `Pages of ${what}s` },
    h("span", null, text),
    button("Previous", () => go(page - 1), "small", { disabled: page === 0 }),
    button("Next", () => go(page + 1), "small", { disabled: page >= pages - 1 }),
  );
}

/** Return a field to search in a list. */
export function searchField(label, value, oninput) {
  return h("input", { type: "search", class: "search", placeholder: label, "aria-label": label, value, spellcheck: "false", autocomplete: "off", oninput: (event) => oninput(event.target.value) });
}

/** Return links that look like tabs; `current` is the name of the one that is shown. */
export function tabs(label, each, current) {
  return h(
    "nav",
    { class: "tabs", "aria-label": label },
    each.map(({ name, title, href }) => h("a", { href, "aria-current": name === current ? "page" : null }, title)),
  );
}

/** Return a bar of a length from 0 to 1. */
export function bar(share, tone = "") {
  return h("span", { class: "bar", "aria-hidden": "true" }, h("span", { class: `bar-fill ${tone}`, style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }));
}

/** Return a long text that is copied to the clipboard when it is clicked. */
export function copyable(text, tell) {
  return h("button", { type: "button", class: "copy", title: "Copy", "aria-label": `Copy ${text}`, onclick: () => copy(text, tell) }, h("code", null, text));
}

/** Copy a text to the clipboard, and show a message. */
export async function copy(text, tell, done = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
    tell(done);
  } catch {
    // Only pages that were loaded by https, or from this machine, have a clipboard.
    tell("The browser does not allow this page to copy: select the text instead", "warn");
  }
}

const ICONS = {
  overview: "M4 13h6V4H4zM14 20h6V10h-6zM4 20h6v-4H4zM14 7h6V4h-6z",
  topics: "M5 6h14M5 12h14M5 18h9",
  groups: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM16.5 11a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM3 19c0-3 2-5 5-5s5 2 5 5M14.5 14.2c3 0 5.5 1.600 5.500 4.300",
  transactions: "M4 9h13M14 6l3 3-3 3M20 15H7M10 12l-3 3 3 3",
  members: "M4 5h16v5H4zM4 14h16v5H4zM8 7.500h.010M8 16.500h.010",
  storage: "M12 4c4.400 0 8 1.300 8 3s-3.600 3-8 3-8-1.300-8-3 3.600-3 8-3zM4 7v5c0 1.700 3.600 3 8 3s8-1.300 8-3V7M4 12v5c0 1.700 3.600 3 8 3s8-1.300 8-3v-5",
};

export function icon(name) {
  return s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, s("path", { d: ICONS[name] }));
}
