// Parts of several pages: links, states, and commands to the cluster.

import { act } from "../api.js";
import { dialog, tell } from "../dialog.js";
import { h } from "../dom.js";
import { plural } from "../format.js";
import { badge } from "../widgets.js";

export function topicHref(name, rest = "") {
  return `#/topics/${encodeURIComponent(name)}${rest}`;
}

export function topicLink(name) {
  return h("a", { href: topicHref(name) }, name);
}

export function partitionLink(topic, partition) {
  return h("a", { href: topicHref(topic, `/partitions/${partition}`) }, `${topic} / ${partition}`);
}

export function groupLink(id) {
  return h("a", { href: `#/groups/${encodeURIComponent(id)}` }, groupName(id));
}

/** Return the id, or a word for one that would be invisible. */
export function groupName(id) {
  return id.trim() === "" ? "(blank)" : id;
}

export function transactionLink(id) {
  return h("a", { href: `#/transactions/${encodeURIComponent(id)}` }, transactionName(id));
}

/** Return the id, or a word for one that would be invisible. */
export function transactionName(id) {
  return id.trim() === "" ? "(blank)" : id;
}

/** Return an incarnation, which CSS may shorten; its title has all of it. */
export function shortName(incarnation) {
  if (!incarnation) return h("span", { class: "muted" }, "none");
  return h("span", { class: "incarnation", title: incarnation }, incarnation);
}

export function partitionState({ state, why }) {
  const tone = state === "WRITE" ? "good" : state === "OFFLINE" || why ? "bad" : "info";
  return badge(state === "WRITE" ? "served" : state.toLowerCase(), tone);
}

const GROUP_TONES = { Stable: "good", Empty: "", Dead: "", PreparingRebalance: "warn", CompletingRebalance: "warn" };
const GROUP_WORDS = { PreparingRebalance: "preparing rebalance", CompletingRebalance: "completing rebalance" };

export function groupState(state) {
  return badge(GROUP_WORDS[state] ?? state.toLowerCase(), GROUP_TONES[state] ?? "info");
}

const TRANSACTION_TONES = { Ongoing: "info", PrepareCommit: "warn", PrepareAbort: "warn", CompleteCommit: "good", CompleteAbort: "", Empty: "" };
const TRANSACTION_WORDS = { PrepareCommit: "committing", PrepareAbort: "aborting", CompleteCommit: "committed", CompleteAbort: "aborted" };

export function transactionState(state) {
  return badge(TRANSACTION_WORDS[state] ?? state.toLowerCase(), TRANSACTION_TONES[state] ?? "info");
}

const CLEANING_TONES = { damaged: "bad", large: "warn", level: "warn", "": "good" };

/** Return the reason why a compacted log is not cleaned now; an empty reason is that of a log right after a cleaning. */
export function cleaningReason(reason) {
  return badge(reason ? reason.replaceAll("_", " ") : "just cleaned", CLEANING_TONES[reason] ?? "");
}

export function configSource(source) {
  const words = {
    DYNAMIC_TOPIC_CONFIG: ["this topic", "info"],
    DYNAMIC_BROKER_CONFIG: ["broker, dynamic", ""],
    DYNAMIC_DEFAULT_BROKER_CONFIG: ["all brokers, dynamic", ""],
    STATIC_BROKER_CONFIG: ["settings of the process", ""],
    DEFAULT_CONFIG: ["default", ""],
  };
  const [text, tone] = words[source] ?? [source, ""];
  return badge(text, tone);
}

export function balance(app) {
  dialog({
    title: "Balance the brokers",
    verb: "Balance now",
    body: () => h("p", null, "The leader moves partitions from brokers with more load to brokers with less. Each moving partition pauses for a moment; clients see no error."),
    async act() {
      const { moves } = await act("POST", "cluster/balance", {});
      tell(moves ? `${plural(moves, "move")} begun` : "The brokers' load is even: nothing moves");
      app.reload();
    },
  });
}
