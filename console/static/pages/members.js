// The processes of the cluster, and commands for them.

import { act, get, path } from "../api.js";
import { dialog, field } from "../dialog.js";
import { h } from "../dom.js";
import { bytesPerSecond, count, isKnown, plural } from "../format.js";
import { mayCluster } from "../session.js";
import { badge, button, empty, nextOrder, orderOf, pageHead, searchField, sorted, table } from "../widgets.js";
import { balance, shortName } from "./shared.js";

const ROLES = 4;

export function membersPage(app) {
  return {
    title: "Members",
    section: "members",
    refreshMs: 5000,
    load: (signal) => get("cluster/status", { limit: 0 }, signal),
    view: (status) => view(app, status),
  };
}

function view(app, status) {
  const search = app.query.get("search") ?? "";
  const wanted = search.toLowerCase();
  const isAlone = status.members.length === 1;
  const order = orderOf(app.query.get("sort"), "incarnation");
  const columns = [
    { name: "incarnation", title: "Member", cell: (each) => h("span", null, shortName(each.incarnation), " ", each.is_leader ? badge("leader", "info") : null, each.incarnation === status.asked ? badge("this process") : null, h("span", { class: "why" }, `${each.kafka || each.internal || "no address"}, ${each.version}`)), sort: (each) => each.incarnation },
    { name: "state", title: "State", cell: state, sort: (each) => (each.is_draining ? 2 : each.unreachable_for ? 1 : 0) },
    { name: "roles", title: "Roles", cell: (each) => (each.roles.length === ROLES ? "all" : each.roles.join(", ")), sort: (each) => each.roles.join(", ") },
    { name: "zone", title: "Zone", class: "nowrap", cell: (each) => each.zone || h("span", { class: "muted" }, "none"), sort: (each) => each.zone },
    { name: "partitions", title: "Partitions", align: "right", cell: (each) => count(each.partitions), sort: (each) => each.partitions },
    { name: "shards", title: "Shards", align: "right", cell: (each) => count(each.shards), sort: (each) => each.shards },
    { name: "load_share", title: "Load", align: "right", cell: (each) => (isKnown(each.load_share) ? `${each.load_share.toFixed(2)}×` : "–"), sort: (each) => each.load_share },
    { name: "bytes_in", title: "Bytes in", align: "right", cell: (each) => bytesPerSecond(each.rates?.bytes_in), sort: (each) => each.rates?.bytes_in },
    { name: "bytes_out", title: "Bytes out", align: "right", cell: (each) => bytesPerSecond(each.rates?.bytes_out), sort: (each) => each.rates?.bytes_out },
    {
      name: "acts", title: "", label: "Acts", align: "right",
      cell: (each) => h("span", { class: "actions stacked" },
        mayCluster("ALTER_CONFIGS") ? button("Log level…", () => logLevel(app, each), "small", { "aria-label": `Log level of ${each.incarnation}` }) : null,
        isAlone || !mayCluster("ALTER") ? null : button("Drain…", () => drain(app, each, status), "small danger", { disabled: each.is_draining, "aria-label": `Drain ${each.incarnation}` })),
    },
  ];
  const rows = sorted(status.members.filter((each) => [each.incarnation, each.zone, each.kafka, each.internal, ...each.roles].some((text) => text.toLowerCase().includes(wanted))), columns, order);
  return [
    pageHead("Members", `${plural(status.members.length, "process", "processes")}${status.is_from_leader ? "" : "; the leader does not respond, loads are missing"}`, isAlone || !mayCluster("ALTER") ? null : button("Balance…", () => balance(app))),
    h("div", { class: "toolbar" }, searchField("Search members", search, (text) => app.set({ search: text }))),
    rows.length
      ? table({ label: "Members", rows, columns, keyOf: (each) => each.incarnation, order, onsort: (name) => app.set({ sort: nextOrder(order, name) }) })
      : empty("No member matches the search.", button("Clear the search", () => app.set({ search: null }))),
  ];
}

function state(each) {
  const found = [
    each.storage_trouble ? [badge("storage fails", "bad"), h("span", { class: "why" }, each.storage_trouble)] : null,
    each.unreachable_for ? badge(`not reached by ${plural(each.unreachable_for, "proxy", "proxies")}`, "bad") : null,
    each.is_draining ? badge("draining", "warn") : null,
  ].filter(Boolean);
  return found.length ? h("span", null, found.map((one) => [one, " "])) : badge("serves", "good");
}

function drain(app, member, status) {
  const stay = new Set(status.members.filter((each) => each !== member && !each.is_draining).flatMap((each) => each.roles));
  const last = member.roles.filter((role) => !stay.has(role));
  dialog({
    title: "Drain a member",
    verb: "Drain",
    danger: true,
    type: last.length ? "last" : null,
    body: () => [
      h("p", null, shortName(member.incarnation), ` hands over ${plural(member.partitions, "partition")} and ${plural(member.shards, "shard")}, and ends. Its supervisor may start it again.`),
      last.length ? h("p", { class: "notice bad" }, `It is the last ${last.join(", ")}: start another one first, or the cluster is left without that role.`) : null,
    ],
    async act() {
      const drained = await act("POST", "cluster/drain", { member: member.incarnation });
      app.tell(`${drained.member} begins to drain`);
      app.reload();
    },
  });
}

const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"];

async function logLevel(app, member) {
  const where = path`members/${member.incarnation}/log-level`;
  let loggers;
  try {
    ({ loggers } = await get(where));
  } catch (error) {
    app.tell(error.message, "bad");
    return;
  }
  const [first] = loggers;
  const state = { logger: first.logger, level: first.level };
  const set = loggers.filter((each) => each.is_set);
  dialog({
    title: "Log level of a member",
    verb: "Set",
    state,
    body: (_, redraw) => [
      h("p", null, shortName(member.incarnation), ": the level applies until it is restarted."),
      h(
        "div",
        { class: "pair" },
        field(state, "logger", "Logger", { options: loggers.map(({ logger, level }) => [logger, `${logger}: ${level}`]) }, redraw),
        field(state, "level", "Level", { options: LEVELS.map((each) => [each, each]) }),
      ),
      h("p", { class: "hint" }, `With a level of their own: ${set.map(({ logger, level }) => `${logger} ${level}`).join(", ")}. The others have that of the logger above them.`),
    ],
    async act() {
      await act("PUT", where, { logger: state.logger, level: state.level });
      app.tell(`${state.logger} of ${member.incarnation} logs ${state.level}`);
    },
  });
}
