// All transactional ids of the cluster, by pages, which the process filters and sorts.

import { h } from "../dom.js";
import { count, isKnown, milliseconds, plural, span, time } from "../format.js";
import { badge, empty, notices, pageHead } from "../widgets.js";
import { listQuery, listSearch, listTable, loadList } from "./list.js";
import { transactionLink, transactionState } from "./shared.js";

const SHOWN_MISSING = 8;
const OPEN = "Ongoing,PrepareCommit,PrepareAbort";
const STATES = { "": "All states", [OPEN]: "Open", Ongoing: "Ongoing", "PrepareCommit,PrepareAbort": "Ending: markers are missing", "CompleteCommit,CompleteAbort": "Complete", Empty: "Empty" };
const AGES = { "": "Any age", 60_000: "Open for a minute", 900_000: "Open for 15 minutes", 3_600_000: "Open for an hour" };

export function transactionsPage(app) {
  const columns = [
    { name: "transactional_id", title: "Transactional id", cell: (each) => transactionLink(each.transactional_id), sort: true },
    { name: "state", title: "State", cell: (each) => transactionState(each.state), sort: true },
    { name: "age", title: "Open for", align: "right", class: "nowrap", cell: (each) => age(each) },
    { name: "timeout", title: "Time-out", align: "right", class: "nowrap", cell: (each) => milliseconds(each.timeout_ms) },
    { name: "producer_id", title: "Producer id", align: "right", cell: (each) => count(each.producer_id), sort: true },
    { name: "epoch", title: "Epoch", align: "right", cell: (each) => count(each.producer_epoch) },
  ];
  const list = { size: 25, columns, sort: "transactional_id" };
  const shown = { label: "Transactions", columns, keyOf: (each) => each.transactional_id, what: "transactional id" };
  return {
    title: "Transactions",
    section: "transactions",
    refreshMs: 5000,
    load: (signal) => loadList("transactions", "transactions", { ...listQuery(app, list), ...filters(app.query) }, signal),
    view: (found) => view(app, found, shown),
  };
}

/** Return how long a transaction has been open, with a warning where that is longer than its time-out. */
function age({ age_ms: ageMs, started_ms: startedMs, timeout_ms: timeoutMs }) {
  if (!isKnown(ageMs)) return h("span", { class: "muted" }, "not open");
  return h("span", { title: `since ${time(startedMs)}` }, span(ageMs), ageMs > timeoutMs ? [" ", badge("past its time-out", "warn")] : null);
}

/** Return the filters in the address.  An unknown state or age is none. */
function filters(query) {
  const producer = query.get("producer_id") ?? "";
  return {
    state: query.get("state") in STATES ? query.get("state") : "",
    older_than_ms: query.get("older_than_ms") in AGES ? query.get("older_than_ms") : "",
    producer_id: /^\d{1,18}$/.test(producer) ? producer : "",
  };
}

function view(app, list, shown) {
  const asked = filters(app.query);
  const missing = list.answer.shards_not_loaded;
  const found = missing.slice(0, SHOWN_MISSING).map((each) => ({ tone: "bad", title: `Transactions of shard ${each.shard} are missing here`, text: `${each.coordinator || "no process"} coordinates it: ${each.why}` }));
  if (missing.length > SHOWN_MISSING) found.push({ tone: "bad", title: `Transactions of ${plural(missing.length - SHOWN_MISSING, "further shard")} are missing here`, text: "bmq cluster status lists all of them." });
  const choose = (name, options, label) => h("select", { "aria-label": label, value: asked[name], onchange: (event) => app.ask({ [name]: event.target.value, page: null }) }, Object.entries(options).map(([value, text]) => h("option", { value, selected: value === asked[name] }, text)));
  const isFiltered = Boolean(app.query.get("search") || asked.state || asked.older_than_ms || asked.producer_id);
  return [
    pageHead("Transactions", plural(list.total, "transactional id")),
    found.length ? notices(found) : null,
    h(
      "div",
      { class: "toolbar" },
      listSearch(app, "Search transactional ids"),
      choose("state", STATES, "State"),
      choose("older_than_ms", AGES, "Open for"),
      h("input", { type: "text", inputmode: "numeric", class: "narrow", placeholder: "Producer id (all)", "aria-label": "Producer id (all)", value: app.query.get("producer_id") ?? "", onchange: (event) => app.ask({ producer_id: event.target.value.trim(), page: null }) }),
    ),
    list.items.length
      ? listTable(app, list, shown)
      : empty(isFiltered ? "No transactional id is like this." : "There are no transactional ids yet: a producer with a transactional.id creates one when it starts."),
  ];
}
