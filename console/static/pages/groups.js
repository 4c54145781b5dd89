// All groups of the cluster, by pages, which the process searches and sorts.  Their lag is loaded after them.

import { ApiError, get } from "../api.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { empty, notices, pageHead } from "../widgets.js";
import { listQuery, listSearch, listTable, loadList } from "./list.js";
import { groupLink, groupState } from "./shared.js";

const LAG_AGE_MS = 15_000;
const SHOWN_MISSING = 8;

export function groupsPage(app) {
  const lags = new Lags(app.draw);
  const columns = [
    { name: "group_id", title: "Group", cell: (each) => groupLink(each.group_id), sort: true },
    { name: "state", title: "State", cell: (each) => groupState(each.state), sort: true },
    { name: "members", title: "Members", align: "right", cell: (each) => count(each.members) },
    { name: "protocol_type", title: "Protocol", cell: (each) => each.protocol_type || h("span", { class: "muted" }, "none"), sort: true },
    { name: "lag", title: "Lag", align: "right", cell: (each) => lags.cell(each.group_id) },
  ];
  const list = { size: 25, columns, sort: "group_id" };
  const shown = { label: "Groups", columns, keyOf: (each) => each.group_id, what: "group" };
  return {
    title: "Groups",
    section: "groups",
    refreshMs: 5000,
    async load(signal) {
      const found = await loadList("groups", "groups", listQuery(app, list), signal);
      lags.load(found.query);
      return found;
    },
    view: (found) => view(app, found, shown),
    left: () => lags.stop(),
  };
}

/** The lag of the groups on the screen.  It has its own request, since owners of partitions may respond slowly. */
class Lags {
  constructor(draw) {
    this.draw = draw;
    this.known = new Map(); // group id -> {lag, error}, for the page's groups
    this.error = "";
    this.query = ""; // of the last request
    this.at = 0; // time of the last response
    this.request = null; // the one under way
  }

  stop() {
    this.request?.abort();
    this.request = null;
  }

  async load(query) {
    const wanted = JSON.stringify(query);
    if (wanted === this.query && (this.request || Date.now() - this.at < LAG_AGE_MS)) return;
    this.stop();
    const request = (this.request = new AbortController());
    this.query = wanted;
    try {
      const { groups } = await get("groups", { ...query, lag: true }, request.signal);
      this.known = new Map(groups.map(({ group_id: id, lag, lag_error: error }) => [id, { lag, error }]));
      this.error = "";
    } catch (error) {
      if (this.request !== request) return; // another page of the list is being loaded
      if (!(error instanceof ApiError)) throw error;
      this.error = error.message;
    }
    this.request = null;
    this.at = Date.now();
    this.draw();
  }

  cell(id) {
    const known = this.known.get(id);
    if (known && known.lag !== null) return count(known.lag);
    const why = known?.error || this.error;
    return why ? h("span", { class: "muted", title: why }, "not known") : h("span", { class: "muted" }, "…");
  }
}

function view(app, list, shown) {
  const search = app.query.get("search") ?? "";
  const missing = list.answer.shards_not_loaded;
  const found = missing.slice(0, SHOWN_MISSING).map((each) => ({ tone: "bad", title: `Groups of shard ${each.shard} are missing here`, text: `${each.coordinator || "no process"} coordinates it: ${each.why}` }));
  if (missing.length > SHOWN_MISSING) found.push({ tone: "bad", title: `Groups of ${plural(missing.length - SHOWN_MISSING, "further shard")} are missing here`, text: "bmq cluster status lists all of them." });
  return [
    pageHead("Consumer groups", plural(list.total, "group")),
    found.length ? notices(found) : null,
    h("div", { class: "toolbar" }, listSearch(app, "Search groups")),
    list.items.length
      ? listTable(app, list, shown)
      : empty(search ? `No group has “${search}” in its id.` : "There are no groups yet: a consumer with a group.id creates one when it starts."),
  ];
}
