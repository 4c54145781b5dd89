// One transactional id: its producer, and the partitions and processes that its transaction waits for.

import { get, transactionPath } from "../api.js";
import { h } from "../dom.js";
import { count, isKnown, milliseconds, plural, span, time } from "../format.js";
import { button, card, empty, notices, pageHead, table, tile, tiles } from "../widgets.js";
import { partitionLink, shortName, transactionName, transactionState } from "./shared.js";

const PARTITIONS = 250;
const LATE_MS = 10_000; // markers are written within milliseconds if all is well
const OFFSETS_TOPIC = "__consumer_offsets";

export function transactionPage(app, id) {
  return {
    title: transactionName(id),
    section: "transactions",
    refreshMs: 5000,
    load: (signal) => get(transactionPath(id), { limit: PARTITIONS, after: app.query.get("after") ?? "" }, signal),
    view: (details) => view(app, details),
  };
}

function view(app, details) {
  const { transaction, coordinator, shard, partitions, total } = details;
  const isEnding = details.waits_for === "markers";
  return [
    pageHead(h("span", null, transactionName(transaction.transactional_id), " ", transactionState(transaction.state))),
    notices(notes(details)),
    tiles(
      tile("Open for", isKnown(transaction.age_ms) ? span(transaction.age_ms) : "not open", isKnown(transaction.started_ms) ? `since ${time(transaction.started_ms)}` : ""),
      tile("Time-out", milliseconds(transaction.timeout_ms)),
      tile("Producer id", count(transaction.producer_id), `epoch ${transaction.producer_epoch}`),
      tile(isEnding ? "Markers missing" : "Partitions", count(total)),
      tile("Coordinator", shortName(coordinator), `shard ${shard}`),
    ),
    card(isEnding ? "Partitions without their marker" : "Partitions", partitions.length ? partitionTable(partitions, isEnding) : empty("No partition is in a transaction of this id."), details.next || app.query.get("after") ? pages(app, details.next) : null),
  ];
}

/** Return what the transaction waits for, and what an operator can do. */
function notes({ transaction, partitions, waits_for: waitsFor, total }) {
  if (waitsFor === "producer") {
    const left = transaction.started_ms === null ? null : transaction.timeout_ms - transaction.age_ms;
    const text = left === null ? "The coordinator aborts it after its time-out." : left > 0 ? `The coordinator aborts it in ${span(left)}, if the producer has not ended it before.` : "Its time-out has passed: the coordinator is about to abort it.";
    return [{ tone: left !== null && left <= 0 ? "warn" : "info", title: "It waits for its producer to commit or abort", text: `${text} bmq transaction fence aborts it at once.` }];
  }
  if (waitsFor !== "markers") return [];
  const word = transaction.state === "PrepareCommit" ? "committed" : "aborted";
  const broken = partitions.filter((each) => each.why || each.error);
  const text = broken.length ? `Remove the cause that the ${plural(broken.length, "line")} below with a reason name; the markers follow by themselves.` : "The coordinator sends them again, at the latest every 5 s.";
  return [{ tone: transaction.age_ms > LATE_MS ? "warn" : "info", title: `It is ${word}, and waits for the markers of ${plural(total, "partition")}`, text }];
}

function pages(app, next) {
  const go = (after) => app.ask({ after });
  return h("span", { class: "actions" }, button("First page", () => go(null), "small", { disabled: !app.query.get("after") }), button("Next page", () => go(next), "small", { disabled: next === null }));
}

/** Return why a partition has no marker: what keeps the process from writing it, and the error of the last try. */
function reason({ why, error }) {
  return [why, error && `the last try: ${error}`].filter(Boolean).join("; ");
}

function partitionTable(partitions, isEnding) {
  const columns = [{ name: "partition", title: "Partition", cell: (each) => partitionLink(each.topic, each.partition) }];
  if (isEnding) {
    columns.push(
      { name: "process", title: "Written by", cell: (each) => h("span", null, each.topic === OFFSETS_TOPIC ? "coordinator " : "broker ", shortName(each.process)) },
      { name: "why", title: "Why not yet", cell: (each) => reason(each) || h("span", { class: "muted" }, "it serves the partition") },
    );
  }
  return table({ label: isEnding ? "Partitions without their marker" : "Partitions", rows: partitions, keyOf: (each) => `${each.topic} ${each.partition}`, columns });
}
