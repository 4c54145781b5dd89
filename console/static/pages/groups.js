// All groups of the cluster; the lag of those on the screen is asked for one by one, some at once.

import { get, getAll, isAddressable, path } from "../api.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { empty, nextOrder, notices, orderOf, pageHead, pager, searchField, sorted, table } from "../widgets.js";
import { groupLink, groupState } from "./shared.js";

const GROUPS_MAX = 10_000;
const SIZE = 25;
const PARALLEL = 3;
const LAG_AGE_MS = 15_000;

export function groupsPage(app) {
  const lags = new Map(); // of a group: {at, lag or null, more, error}
  return {
    title: "Groups",
    section: "groups",
    refreshMs: 5000,
    load: (signal) => getAll("groups", "groups", {}, GROUPS_MAX, signal),
    view(data) {
      const { rows, parts } = view(app, data, lags);
      askLags(app, lags, rows);
      return parts;
    },
  };
}

function askLags(app, lags, rows) {
  const due = rows.filter(({ group_id: id }) => isAddressable(id) && Date.now() - (lags.get(id)?.at ?? 0) > LAG_AGE_MS);
  for (const { group_id: id } of due) lags.set(id, { lag: null, ...lags.get(id), at: Date.now() });
  const { page } = app;
  const work = async () => {
    while (due.length && app.page === page) {
      const { group_id: id } = due.shift();
      try {
        const details = await get(path`groups/${id}`);
        lags.set(id, { at: Date.now(), lag: details.lag, more: details.next !== null, error: "" });
      } catch (error) {
        lags.set(id, { at: Date.now(), lag: null, more: false, error: error.message });
      }
      if (app.page === page) app.draw();
    }
  };
  for (let worker = 0; worker < PARALLEL; worker += 1) work();
}

function view(app, { items, total, isCut, first }, lags) {
  const search = app.query.get("search") ?? "";
  const wanted = search.toLowerCase();
  const order = orderOf(app.query.get("sort"), "group_id");
  const columns = [
    { name: "group_id", title: "Group", cell: (each) => groupLink(each.group_id), sort: (each) => each.group_id },
    { name: "state", title: "State", cell: (each) => groupState(each.state), sort: (each) => each.state },
    { name: "members", title: "Members", align: "right", cell: (each) => count(each.members), sort: (each) => each.members },
    { name: "protocol_type", title: "Protocol", cell: (each) => each.protocol_type || h("span", { class: "muted" }, "none"), sort: (each) => each.protocol_type },
    { name: "lag", title: "Lag", align: "right", cell: (each) => lagOf(lags.get(each.group_id)) },
  ];
  const shown = sorted(items.filter((each) => each.group_id.toLowerCase().includes(wanted)), columns, order);
  const page = Math.min(Math.max(0, Number(app.query.get("page") ?? 0) || 0), Math.max(0, Math.ceil(shown.length / SIZE) - 1));
  const rows = shown.slice(page * SIZE, (page + 1) * SIZE);
  const missing = first.shards_not_loaded.map((each) => ({ tone: "bad", title: `Groups of shard ${each.shard} are missing here`, text: `${each.coordinator || "nobody"} coordinates it: ${each.why}` }));
  const parts = [
    pageHead("Consumer groups", `${plural(total, "group")}${isCut ? `; the first ${count(items.length)} are listed` : ""}`),
    missing.length ? notices(missing.slice(0, 8)) : null,
    h("div", { class: "toolbar" }, searchField("Search groups", search, (text) => app.set({ search: text, page: null }))),
    rows.length
      ? [
          table({ label: "Groups", rows, columns, keyOf: (each) => each.group_id, order, onsort: (name) => app.set({ sort: nextOrder(order, name), page: null }) }),
          pager({ page, size: SIZE, total: shown.length, go: (number) => app.set({ page: number || null }), what: "group" }),
        ]
      : empty(search ? `${isCut ? `None of the first ${count(items.length)} groups` : "No group"} has “${search}” in its id.` : "There are no groups yet: a consumer with a group.id makes one when it starts."),
  ];
  return { rows, parts };
}

function lagOf(known) {
  if (!known) return h("span", { class: "muted" }, "…");
  if (known.error) return h("span", { class: "muted", title: known.error }, "not known");
  if (known.lag === null) return h("span", { class: "muted" }, "…");
  return `${count(known.lag)}${known.more ? " or more" : ""}`;
}
